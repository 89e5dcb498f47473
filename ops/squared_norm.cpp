// Norms of a list of tensors, which may differ in shape and dtype, for clipping gradients by their global
// norm:
// - squared_norm: Σ x² over all elements of all tensors, in f32, or in f64 if one of the tensors is f64
// - global_norm: √Σ x². It is correct if the dtype can represent the norm, even if it cannot represent the
//   square
// - block_norms: √Σ x² over each norm_block elements of a tensor. Ranks that store shards of a tensor compute
//   the same norms as one rank that stores all of it.
#include "ops/common.h"

namespace tg {

namespace {

// One scalar, in f64 if one of the tensors is f64.
std::vector<OutSpec> infer_norm(std::span<const Operand> in, const Attrs&) {
  detail::require_operands(in, 1, SIZE_MAX);
  for (const Operand& x : in) detail::require_float(x.dtype);
  const bool has_f64 = std::ranges::any_of(in, [](const Operand& x) { return x.dtype == f64; });
  return detail::row_major_output(has_f64 ? f64 : f32, {});
}

DType result_type(std::span<const Tensor> in) {
  return std::ranges::any_of(in, [](const Tensor& x) { return x.dtype() == f64; }) ? f64 : f32;
}

// Σ x² of all tensors, which are converted to the dtype first.
Tensor total_of_squares(std::span<const Tensor> in, DType dtype) {
  Tensor total;
  for (const Tensor& x : in) {
    const Tensor own = sum_squares(cast(x, dtype));
    total = total.defined() ? total + own : own;
  }
  return total;
}

// The gradient of each tensor that needs one.
template <class F>
Tensors gradient_of_each(const Backprop& g, F gradient) {
  Tensors z(g.in.size());
  for (std::size_t i = 0; i < z.size(); ++i)
    if (g.needed[i]) z[i] = cast(gradient(g.in[i]), g.in[i].dtype());
  return z;
}

Tensors record_list(const Op& op, const std::vector<Tensor>& xs, const Where& where) {
  return detail::first_of(xs, op.name, where).graph().record(op, xs, {}, where);
}

// The roundings of a block's squares, the sums of blocks, and the root.
double roundings_of_squares(std::span<const Operand> in, std::span<const Operand>, const Attrs&) {
  double blocks = 0;
  std::int64_t longest = 0;
  for (const Operand& x : in) {
    longest = std::max(longest, x.layout.numel());
    blocks += static_cast<double>(norm_blocks(x.layout.numel()));
  }
  return static_cast<double>(std::min(longest, norm_block)) + blocks + 1;
}

}  // namespace

const Op& squared_norm_op = *define_op(
    {.name = "squared_norm",
     .doc = "x₁, x₂, … → y []: y = Σ x² over all elements of all tensors; f64 if one of them is f64, "
            "otherwise f32",
     .infer = infer_norm,
     .vjp =
         [](const Backprop& g) {
           return gradient_of_each(g, [&](const Tensor& x) { return 2 * g.z[0] * x; });
         },
     .decompose = [](std::span<const Tensor> in, const Attrs&) -> Tensors {
       return {total_of_squares(in, result_type(in))};
     },
     .samples = []() -> std::vector<Sample> {
       const auto call = [](std::span<const Tensor> x) { return squared_norm(Tensors(x.begin(), x.end())); };
       return {{"one", {{{3, 4}}}, call},
               {"list", {{{3, 4}}, {{}}, {{0, 5}}, {{7}}, {{2, 3, 5}}}, call},
               {"the same twice",
                {{{3, 4}}},
                [](std::span<const Tensor> x) {
                  return squared_norm({x[0], transpose(x[0], 0, 1)});
                }},
               // More than one chunk of work in one tensor; the sum is exact in every dtype.
               {"one long",
                {{.shape = {20000}, .values = std::vector<double>(20000, 0.5)}},
                call,
                Sample::Expected{{{5000}}, {std::vector<double>(20000, 1)}}}};
     },
     .roundings = roundings_of_squares});

const Op& global_norm_op = *define_op(
    {.name = "global_norm",
     .doc = "x₁, x₂, … → y []: y = √Σ x² over all elements of all tensors; f64 if one of them is f64, "
            "otherwise f32. No square overflows or underflows",
     .infer = infer_norm,
     .vjp =
         [](const Backprop& g) {
           const Tensor &y = g.out[0], zero = equal(y, 0);
           return gradient_of_each(g, [&](const Tensor& x) {
             return cast(x, y.dtype()) / where(zero, 1, y) * where(zero, 0, g.z[0]);
           });
         },
     .decompose = [](std::span<const Tensor> in, const Attrs&) -> Tensors {
       // At 0 the slope of the root is infinite, so the gradient is set to 0.
       const Tensor total = total_of_squares(in, f64), zero = equal(total, 0);
       return {cast(where(zero, 0, sqrt(where(zero, 1, total))), result_type(in))};
     },
     .samples = []() -> std::vector<Sample> {
       const auto call = [](std::span<const Tensor> x) { return global_norm(Tensors(x.begin(), x.end())); };
       return {{"one", {{{3, 4}}}, call},
               {"list", {{{3, 4}}, {{}}, {{0, 5}}, {{7}}, {{2, 3, 5}}}, call},
               {"zeros", {{.shape = {2}, .values = {0, 0}}}, call, Sample::Expected{{{0}}, {{0, 0}}}},
               {"one long",
                {{.shape = {16384}, .values = std::vector<double>(16384, 0.5)}},
                call,
                Sample::Expected{{{64}}, {std::vector<double>(16384, 0.0078125)}}}};
     },
     .roundings = roundings_of_squares});

const Op& block_norms_op = *define_op(
    {.name = "block_norms",
     .doc = "x₁, … → y₁, …: yᵢ [⌈n/1024⌉] = √Σ x² over each 1024 of the n elements of xᵢ, in f32 or f64",
     .infer = [](std::span<const Operand> in, const Attrs&) -> std::vector<OutSpec> {
       detail::require_operands(in, 1, SIZE_MAX);
       std::vector<OutSpec> out;
       for (const Operand& x : in) {
         detail::require_float(x.dtype);
         out.push_back({compute_type(x.dtype), row_major({norm_blocks(x.layout.numel())})});
       }
       return out;
     },
     .not_differentiable = "it is part of an optimizer's update",
     .decompose = [](std::span<const Tensor> in, const Attrs&) -> Tensors {
       Tensors norms;
       for (const Tensor& x : in) {
         const std::int64_t n = x.numel(), blocks = norm_blocks(n);
         const Tensor padded =
             slice_assign(full(x.graph(), {blocks * norm_block}, 0, x.dtype()), reshape(x, {n}), 0, 0);
         const Tensor rows = cast(view(padded, {blocks, norm_block}), compute_type(x.dtype()));
         norms.push_back(sqrt(sum_squares(rows, {1})));
       }
       return norms;
     },
     .samples = []() -> std::vector<Sample> {
       const auto call = [](std::span<const Tensor> x) { return block_norms(Tensors(x.begin(), x.end())); };
       return {{"one", {{{3, 4}}}, call},
               {"list", {{{3, 4}}, {{}}, {{0, 5}}, {{1024}}, {{2, 3, 5}}}, call},
               {"transposed",
                {{{40, 60}}},
                [](std::span<const Tensor> x) { return block_norms({transpose(x[0], 0, 1)}); }},
               // The sums of 1024 and 256 quarters are exact in every dtype.
               {"several blocks",
                {{.shape = {2304}, .values = std::vector<double>(2304, 0.5)}},
                call,
                Sample::Expected{{{16, 16, 8}}, {}}}};
     },
     .roundings = roundings_of_squares,
     .each = {1, 1}});

Tensors block_norms(const std::vector<Tensor>& xs, Where where) {
  return record_list(block_norms_op, xs, where);
}

Tensor global_norm(const std::vector<Tensor>& xs, Where where) {
  return record_list(global_norm_op, xs, where)[0];
}

Tensor squared_norm(const std::vector<Tensor>& xs, Where where) {
  return record_list(squared_norm_op, xs, where)[0];
}

}  // namespace tg
