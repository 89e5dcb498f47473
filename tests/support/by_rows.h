// Checks batch invariance (CompileOptions::batch_invariant): each row of a result must be bitwise identical
// in every batch.
#pragma once

#include <cstring>
#include <functional>
#include <random>

#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>
#include "tests/support/op_testing.h"

namespace tg::testing {

using Tensors = std::vector<Tensor>;

// Returns elements [first, first + count) along the first axis.
inline Array part(const Array& a, std::int64_t first, std::int64_t count) {
  Shape shape = a.shape();
  const std::int64_t rows = shape[0];
  shape[0] = count;
  Array out(shape, a.dtype());
  const std::size_t row = a.bytes() / static_cast<std::size_t>(rows);
  std::memcpy(out.raw(), a.raw() + static_cast<std::size_t>(first) * row,
              static_cast<std::size_t>(count) * row);
  return out;
}

// A function. The first axis of its inputs and results is the row.
struct ByRows {
  std::vector<Array> inputs;
  std::function<Tensors(const Tensors&)> f;
  Device device = Device::cpu();

  std::vector<Array> of(std::int64_t first, std::int64_t count, int threads) const {
    Graph g;
    Tensors in;
    std::vector<Feed> feeds;
    for (const Array& a : inputs) {
      const Array rows = part(a, first, count);
      in.push_back(g.input("x" + std::to_string(in.size()), rows.shape(), rows.dtype()));
      feeds.emplace_back(in.back(), rows);
    }
    return eval(f(in), feeds, {.device = device, .threads = threads, .batch_invariant = true});
  }

  // Compares the rows of the complete batch on one thread with the rows of smaller batches.
  void check(const std::vector<std::int64_t>& counts) const {
    const std::int64_t all = inputs[0].shape()[0];
    const std::vector<Array> batch = of(0, all, 1);
    for (const std::int64_t count : counts)
      for (const std::int64_t first : {std::int64_t{0}, all / 2, all - count}) {
        if (first + count > all) continue;
        const std::vector<Array> some = of(first, count, 1 + static_cast<int>(count % 3));
        for (std::size_t i = 0; i < some.size(); ++i)
          ASSERT_TRUE(some[i].same_bits(part(batch[i], first, count)))
              << "result " << i << ", rows " << first << " to " << first + count - 1;
      }
  }
};

inline Array random_rows(const Shape& shape, DType dtype, std::uint64_t seed) {
  return Array::of(shape, random_vector(numel(shape), seed)).to(dtype);
}
inline Array random_ids(std::int64_t count, std::int32_t below) {
  std::mt19937 rng(3);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(rng() % static_cast<std::uint32_t>(below));
  return Array::of(ids);
}

// Returns ops of transformers for rows of n elements.
inline ByRows ops_on_rows(DType t, std::int64_t n, Device device = Device::cpu()) {
  const auto f = [t, n](const Tensors& in) {
    Graph& g = in[0].graph();
    const Tensor x = in[0], ids = in[2], m = unsqueeze(x, 1), positions = unsqueeze(ids, 1);
    const Tensor gain = g.constant(random_rows({n}, t, 3)), shift = g.constant(random_rows({n}, t, 4)),
                 table = g.constant(random_rows({50, n}, t, 5)),
                 some = g.constant(random_ids(3, static_cast<std::int32_t>(n)));
    const Tensor embedded = embedding(table, ids);
    Tensors all = {layer_norm(x, gain, shift),
                   rms_norm(x + in[1], gain),
                   softmax(x),
                   log_softmax(x * 3),
                   rope(m, positions),
                   rope(m, positions, {.interleaved = true}),
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
                   index_select(x, 1, some),
                   concat({x, in[1]}, 1),
                   slice(concat({x, in[1]}, 1), 1, 1, n) + 1};
    for (const Tensor& r : top_k(x, 2)) all.push_back(r);
    return all;
  };
  return {{random_rows({41, n}, t, 1), random_rows({41, n}, t, 2), random_ids(41, 50)}, f, device};
}

struct ModelKind {
  const char* name;
  nn::ModelConfig config;
};
inline std::vector<ModelKind> model_kinds() {
  const nn::ModelConfig base{
      .vocabulary = 29, .context = 24, .layers = 2, .heads = 4, .width = 48, .bias = true, .std = 0.2};
  std::vector<ModelKind> list = {
      {"GPT", base}, {"GQA", base}, {"MLA", base}, {"MLA, compressed queries", base}};
  list[1].config.architecture = nn::Llama{.key_heads = 2};
  list[2].config.architecture = nn::DeepSeek{};
  list[3].config.architecture = nn::DeepSeek{.query_latent = 12};
  for (std::size_t i = 1; i < list.size(); ++i) list[i].config.bias = false, list[i].config.tied_head = false;
  return list;
}

// Computes features, logits and the greedy choice for 20 sequences.
inline ByRows texts_of(const nn::Model& model, nn::Precision precision, std::int64_t length,
                       Device device = Device::cpu()) {
  Array tokens(Shape{20, length}, i32);
  std::memcpy(tokens.raw(), random_ids(20 * length, 29).raw(), tokens.bytes());
  const auto f = [model, precision](const Tensors& in) {
    const nn::Autocast autocast(in[0].graph(), precision);
    const Tensor x = model.features(in[0]), logits = model.head(x);
    return Tensors{x, logits, argmax(logits, {-1})};
  };
  return {{tokens}, f, device};
}

}  // namespace tg::testing
