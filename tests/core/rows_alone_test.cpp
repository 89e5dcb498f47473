// CompileOptions::rows_alone: a row of a result has the same bits alone as among any others.
#include <cstring>
#include <functional>
#include <random>

#include <tilegrad/nn/layers/mlp.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;
using Tensors = std::vector<Tensor>;

// Elements [first, first + count) along the first axis.
Array part(const Array& a, std::int64_t first, std::int64_t count) {
  Shape shape = a.shape();
  const std::int64_t rows = shape[0];
  shape[0] = count;
  Array out(shape, a.dtype());
  const std::size_t row = a.bytes() / static_cast<std::size_t>(rows);
  std::memcpy(out.raw(), a.raw() + static_cast<std::size_t>(first) * row,
              static_cast<std::size_t>(count) * row);
  return out;
}

// What is computed from inputs whose first axis counts the rows, and so is each result's.
struct ByRows {
  std::vector<Array> inputs;
  std::function<Tensors(const Tensors&)> f;

  std::vector<Array> of(std::int64_t first, std::int64_t count, int threads) const {
    Graph g;
    Tensors in;
    std::vector<Feed> feeds;
    for (const Array& a : inputs) {
      const Array rows = part(a, first, count);
      in.push_back(g.input("x" + std::to_string(in.size()), rows.shape(), rows.dtype()));
      feeds.emplace_back(in.back(), rows);
    }
    return eval(f(in), feeds, {.threads = threads, .rows_alone = true});
  }

  // The rows among all others on one thread, and in smaller companies.
  void check(const std::vector<std::int64_t>& counts) const {
    const std::int64_t all = inputs[0].shape()[0];
    const std::vector<Array> company = of(0, all, 1);
    for (const std::int64_t count : counts)
      for (const std::int64_t first : {std::int64_t{0}, all / 2, all - count}) {
        if (first + count > all) continue;
        const std::vector<Array> some = of(first, count, 1 + static_cast<int>(count % 3));
        for (std::size_t i = 0; i < some.size(); ++i)
          ASSERT_TRUE(some[i].same_bits(part(company[i], first, count)))
              << "result " << i << ", rows " << first << " to " << first + count - 1;
      }
  }
};

Array random_rows(const Shape& shape, DType dtype, std::uint64_t seed) {
  return Array::of(shape, random_vector(numel(shape), seed)).to(dtype);
}
Array random_ids(std::int64_t count, std::int32_t below) {
  std::mt19937 rng(3);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(rng() % static_cast<std::uint32_t>(below));
  return Array::of(ids);
}

TEST(RowsAlone, HoldsForProductsWithWeightsOfEitherOrder) {
  for (const DType t : float_dtypes)
    for (const std::int64_t n : {1, 9, 33})
      for (const std::int64_t k : {7, 64, 835}) {
        SCOPED_TRACE(::testing::Message() << name_of(t) << " n " << n << " k " << k);
        const ByRows rows{{random_rows({100, k}, t, 1), random_rows({100, n}, t, 2)}, [&](const Tensors& in) {
                            Graph& g = in[0].graph();
                            const Tensor w = g.constant(random_rows({k, n}, t, 3)),
                                         wt = g.constant(random_rows({n, k}, t, 4)),
                                         bias = g.constant(random_rows({n}, t, 5));
                            const Tensor y = linear(in[0], wt.transpose(0, 1), bias);
                            return Tensors{matmul(in[0], w),
                                           linear(in[0], w, bias),
                                           linear(in[0], w, in[1]),
                                           y,
                                           gelu_tanh(y),
                                           gelu(linear(in[0], wt.transpose(0, 1), in[1]))};
                          }};
        rows.check({1, 2, 3, 7, 8, 9, 16, 17, 64});
        if (HasFatalFailure()) return;
      }
}

// As MLA multiplies queries and outputs by the weights of its keys and values: the rows are the tokens of a
// text, next to heads and texts.
TEST(RowsAlone, HoldsForProductsOfEachHead) {
  constexpr std::int64_t heads = 3, d = 16, latent = 40;
  for (const DType t : float_dtypes) {
    SCOPED_TRACE(name_of(t));
    const ByRows rows{{random_rows({20, heads, d}, t, 1), random_rows({20, heads, latent}, t, 2)},
                      [&](const Tensors& in) {
                        Graph& g = in[0].graph();
                        const Tensor u = g.constant(random_rows({heads, d, latent}, t, 3));
                        const auto by_head = [](const Tensor& x) { return transpose(x, 0, 1); };
                        return Tensors{by_head(matmul(by_head(in[0]), u)),
                                       by_head(matmul(by_head(in[1]), transpose(u, 1, 2)))};
                      }};
    rows.check({1, 2, 7, 8, 9, 17});
    // And with texts in front: [rows, H, 1, d].
    const ByRows texts{{random_rows({20, heads, 1, d}, t, 1), random_rows({20, heads, 1, latent}, t, 2)},
                       [&](const Tensors& in) {
                         Graph& g = in[0].graph();
                         const Tensor u = g.constant(random_rows({heads, d, latent}, t, 3));
                         return Tensors{matmul(in[0], u), matmul(in[1], transpose(u, 1, 2))};
                       }};
    texts.check({1, 2, 7, 8, 9, 17});
    if (HasFatalFailure()) return;
  }
}

TEST(RowsAlone, HoldsForOpsOnRows) {
  for (const DType t : float_dtypes)
    for (const std::int64_t n : {2, 6, 34, 300, 1030}) {
      SCOPED_TRACE(::testing::Message() << name_of(t) << " n " << n);
      const ByRows rows{{random_rows({41, n}, t, 1), random_rows({41, n}, t, 2), random_ids(41, 50)},
                        [&](const Tensors& in) {
                          Graph& g = in[0].graph();
                          const Tensor x = in[0], ids = in[2], m = unsqueeze(x, 1);
                          const Tensor gain = g.constant(random_rows({n}, t, 3)),
                                       shift = g.constant(random_rows({n}, t, 4)),
                                       table = g.constant(random_rows({50, n}, t, 5));
                          const Tensor embedded = embedding(table, ids);
                          Tensors all = {
                              layer_norm(x, gain, shift),
                              rms_norm(x + in[1], gain),
                              softmax(x),
                              log_softmax(x * 3),
                              rope(m, unsqueeze(ids, 1)),
                              rope(m, unsqueeze(ids, 1), {.interleaved = true}),
                              embedded,
                              rms_norm(embedded + x, gain),
                              gelu(x),
                              gelu_tanh(x * 2 + in[1]),
                              swiglu(x, in[1]),
                              swiglu(x),
                              cast(silu(x) + gain, bf16),
                              cast(x, f32) / 3,
                              exp(sin(x) * tanh(in[1])),
                              argmax(x, {-1}),
                              index_select(x, 1, g.constant(random_ids(3, static_cast<std::int32_t>(n)))),
                              concat({x, in[1]}, 1),
                              slice(concat({x, in[1]}, 1), 1, 1, n) + 1};
                          for (const Tensor& r : top_k(x, 2)) all.push_back(r);
                          return all;
                        }};
      rows.check({1, 2, 7, 17});
      if (HasFatalFailure()) return;
    }
}

// [rows, 1, width], as one token of each text, or [1, rows, width], as the tokens of one.
TEST(RowsAlone, HoldsForLayersWhateverAxesTheRowsLieOn) {
  nn::Params params(1);
  const nn::Path at(params);
  const nn::LayerNorm norm(at / "norm", 48);
  const nn::Mlp mlp(at / "mlp", 48);
  const nn::GatedMlp gated(at / "gated", 48, 96);
  const Array x = random_rows({40, 48}, f32, 1);
  for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16, nn::Precision::f16}) {
    const auto run = [&](const Shape& shape) {
      Graph g;
      const nn::Autocast autocast(g, precision);
      const Tensor in = g.input("x", {shape[0] * shape[1], 48}), rows = in.view(shape),
                   first = mlp(norm(rows), {.residual = rows});
      const Tensor y = gated(norm(first), {.residual = first});
      const Array part_of_x = part(x, 0, shape[0] * shape[1]);
      return eval(reshape(y, in.shape()), {{in, part_of_x}}, {.rows_alone = true});
    };
    const Array texts = run({40, 1, 48});
    EXPECT_TRUE(run({1, 40, 48}).same_bits(texts));
    EXPECT_TRUE(run({4, 5, 48}).same_bits(part(texts, 0, 20)));
    EXPECT_TRUE(run({1, 1, 48}).same_bits(part(texts, 0, 1)));
  }
}

struct Kind {
  const char* name;
  nn::ModelConfig config;
};
std::vector<Kind> kinds() {
  const nn::ModelConfig base{
      .vocabulary = 29, .context = 24, .layers = 2, .heads = 4, .width = 48, .bias = true, .std = 0.2};
  std::vector<Kind> list = {{"GPT", base}, {"GQA", base}, {"MLA", base}, {"MLA, compressed queries", base}};
  list[1].config.architecture = nn::Llama{.key_heads = 2};
  list[2].config.architecture = nn::DeepSeek{};
  list[3].config.architecture = nn::DeepSeek{.query_latent = 12};
  for (std::size_t i = 1; i < list.size(); ++i) list[i].config.bias = false, list[i].config.tied_head = false;
  return list;
}

TEST(RowsAlone, GivesATextTheSameLogitsInAnyBatch) {
  for (const Kind& kind : kinds())
    for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16, nn::Precision::f16}) {
      nn::Params params(1);
      const nn::Model model(params, kind.config);
      for (const std::int64_t length : {1, 5}) {
        SCOPED_TRACE(::testing::Message()
                     << kind.name << ", length " << length << ", precision " << static_cast<int>(precision));
        Array tokens(Shape{20, length}, i32);
        std::memcpy(tokens.raw(), random_ids(20 * length, 29).raw(), tokens.bytes());
        const ByRows texts{{tokens}, [&](const Tensors& in) {
                             const nn::Autocast autocast(in[0].graph(), precision);
                             const Tensor x = model.features(in[0]);
                             return Tensors{x, model.head(x), argmax(model.head(x), {-1})};
                           }};
        texts.check({1, 2, 3, 8, 9, 17});
        if (HasFatalFailure()) return;
      }
    }
}

}  // namespace
