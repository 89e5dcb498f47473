// Tests CompileOptions::batch_invariant. A row's result must be bitwise independent of the other rows.
#include <tilegrad/nn/layers/layers.h>
#include "tests/support/by_rows.h"

namespace {

using namespace tg;
using namespace tg::testing;

TEST(BatchInvariant, HoldsForProductsWithWeightsOfEitherOrder) {
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

// MLA multiplies queries by key weights and outputs by value weights in this way. The rows are the tokens of
// a sequence. Heads and sequences are further axes.
TEST(BatchInvariant, HoldsForProductsOfEachHead) {
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
    // The first axis contains the sequences: [rows, H, 1, d].
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

TEST(BatchInvariant, HoldsForOpsOnRows) {
  for (const DType t : float_dtypes)
    for (const std::int64_t n : {2, 6, 34, 300, 1030}) {
      SCOPED_TRACE(::testing::Message() << name_of(t) << " n " << n);
      ops_on_rows(t, n).check({1, 2, 7, 17});
      if (HasFatalFailure()) return;
    }
}

// [rows, 1, width] has one token of each sequence. [1, rows, width] has all tokens of one sequence.
TEST(BatchInvariant, HoldsForLayersOnAnyRowAxis) {
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
      return eval(reshape(y, in.shape()), {{in, part_of_x}}, {.batch_invariant = true});
    };
    const Array texts = run({40, 1, 48});
    EXPECT_TRUE(run({1, 40, 48}).same_bits(texts));
    EXPECT_TRUE(run({4, 5, 48}).same_bits(part(texts, 0, 20)));
    EXPECT_TRUE(run({1, 1, 48}).same_bits(part(texts, 0, 1)));
  }
}

TEST(BatchInvariant, SequenceLogitsMatchInAnyBatch) {
  for (const ModelKind& kind : model_kinds())
    for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16, nn::Precision::f16}) {
      nn::Params params(1);
      const nn::Model model(params, kind.config);
      for (const std::int64_t length : {1, 5}) {
        SCOPED_TRACE(::testing::Message()
                     << kind.name << ", length " << length << ", precision " << static_cast<int>(precision));
        texts_of(model, precision, length).check({1, 2, 3, 8, 9, 17});
        if (HasFatalFailure()) return;
      }
    }
}

}  // namespace
