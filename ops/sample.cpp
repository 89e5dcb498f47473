// sample: draws a token for each row of logits.
#include "ops/sample.h"

#include "ops/common.h"

namespace tg {

extern const Op& sample_op;

namespace {

std::vector<OutSpec> infer_sample(std::span<const Operand> in, const Attrs&) {
  detail::require_operands(in, 3, 5);
  if (in.size() == 4) throw Error("got top_k without top_p");
  const Operand& logits = in[0];
  detail::require_float(logits.dtype);
  if (logits.layout.rank() != 2 || logits.shape()[1] < 1 || logits.shape()[1] > INT32_MAX)
    throw ShapeError("expected logits [B, V] with V from 1 to 2^31 − 1");
  const std::int64_t B = logits.shape()[0];
  detail::require_shape("temperature", in[1], {B});
  detail::require_shape("keys", in[2], {B, 2});
  if (!is_float(in[1].dtype)) throw DTypeError("temperature must be floating");
  if (in[2].dtype != i64) throw DTypeError("keys must be i64");
  if (in.size() == 5) {
    detail::require_shape("top_k", in[3], {B});
    detail::require_shape("top_p", in[4], {B});
    if (in[3].dtype != i64 && in[3].dtype != i32) throw DTypeError("top_k must be i64 or i32");
    if (!is_float(in[4].dtype)) throw DTypeError("top_p must be floating");
  }
  return detail::row_major_output(i32, {B});
}

std::vector<Sample> sample_samples() {
  const SampleInput temperature{{6}, {Fill::uniform, 0.25, 2}}, keys{{6, 2}, {Fill::index, 0, 1e6}, i64},
      top_k{{6}, {Fill::index, 0, 12}, i32}, top_p{{6}, {Fill::uniform, 0, 1.1}};
  const auto plain = [](std::span<const Tensor> x) { return sample(x[0], x[1], x[2]); };
  const auto cut = [](std::span<const Tensor> x) { return sample(x[0], x[1], x[2], x[3], x[4]); };
  return {
      {"drawn", {{{6, 40}}, temperature, keys}, plain},
      {"likeliest", {{{6, 40}}, {{6}, {Fill::uniform, -1, 0}}, keys}, plain},
      {"top_k and top_p", {{{6, 40}}, temperature, keys, top_k, top_p}, cut},
      {"ties",  // a sample in which many logits are equal
       {{{6, 40}, {Fill::index, 0, 3}, i64}, temperature, keys, top_k, top_p},
       [](std::span<const Tensor> x) { return sample(cast(x[0], x[1].dtype()), x[1], x[2], x[3], x[4]); }},
      {"many", {{{6, 3000}}, temperature, keys, top_k, top_p}, cut}};
}

// Returns an option as one number per row. x is a number for all rows, or a tensor with one number per row.
// Only numbers are checked here, because the values of tensors are known only when the program runs.
Tensor for_rows(Graph& graph, const TensorArg& x, std::int64_t rows, double absent, DType dtype,
                const char* name, const Range& range) {
  if (x.is_number()) detail::check_options_at(x.where(), "sample", {{name, x.number(), range}});
  if (x.is_number() || x.is_absent())
    return expand(full(graph, {}, x.is_number() ? x.number() : absent, dtype, x.where()), {rows});
  return x.tensor();
}

}  // namespace

const Op& sample_op = *define_op(
    {.name = "sample",
     .doc = "logits [B, V], temperature [B], keys [B, 2], top_k? [B], top_p? [B] → tokens [B] (i32): drawn "
            "from softmax(logits/temperature) with the random number of keys {seed, k}. Candidates are the "
            "top_k most likely tokens (0: all), reduced to the most likely ones whose probabilities reach "
            "top_p. At temperature 0 it is the first most likely token. NaN is never drawn",
     .infer = infer_sample,
     .not_differentiable = "its result is an index",
     .samples = sample_samples,
     .cost = detail::flops_each<40>});

Tensor sample(TensorArg logits, TensorArg temperature, TensorArg keys, TensorArg top_k, TensorArg top_p) {
  const Scope scope(logits);
  Graph& graph = logits.tensor().graph();
  const Shape& shape = logits.tensor().shape();
  const std::int64_t rows = shape.empty() ? 0 : shape[0];
  Tensors in{logits.tensor(),
             for_rows(graph, temperature, rows, 1, f64, "temperature", sampling_ranges::temperature),
             keys.tensor()};
  if (!top_k.is_absent() || !top_p.is_absent()) {
    in.push_back(for_rows(graph, top_k, rows, 0, i32, "top_k", sampling_ranges::top_k));
    in.push_back(for_rows(graph, top_p, rows, 1, f64, "top_p", sampling_ranges::top_p));
  }
  return graph.record(sample_op, in, {}, logits.where())[0];
}

}  // namespace tg
