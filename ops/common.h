// Functions that op definitions share: argument checks, broadcasting, dtype promotion, and parts of losses.
#pragma once

#include <tilegrad/core/base/range.h>
#include <tilegrad/ops/ops.h>

namespace tg {
using Tensors = std::vector<Tensor>;

// y is a reduction over `axes` of a tensor with this shape. Returns a view of y with this shape. The reduced
// axes may have size 1 in y, or may be missing.
Tensor stretch(const Tensor& y, const Shape& shape, const Axes& axes);

}  // namespace tg

namespace tg::detail {

// Returns the common dtype of two dtypes:
// - two floating dtypes: the wider one, or f32 for bf16 and f16
// - a floating dtype and another one: the floating dtype
// - two integer dtypes: the wider one
// - a boolean and another dtype: the other dtype
DType promote(DType a, DType b);

// Two arguments as tensors with the same shape and dtype.
struct Broadcast {
  Tensor a, b;
};
Broadcast broadcast_pair(const Op& op, const TensorArg& a, const TensorArg& b);

// Calls f. If f throws a ShapeError, adds the operand and the caller's line to it.
template <class F>
auto at_call(const TensorArg& x, F f) {
  try {
    return f();
  } catch (const ShapeError& e) {
    throw ShapeError(in_context(std::string(e.what()) + "; got " + x.tensor().text(), x.where()));
  }
}

// Returns the axis, counted from the front. The error for an invalid axis contains the op and the caller's
// line.
std::int64_t axis_of(const TensorArg& x, std::int64_t axis, const char* what);
// Does the same for several axes and sorts them. An empty list means all axes.
Axes axes_of(const TensorArg& x, const Axes& axes, const char* what);
// Returns zeros with the shape and dtype of x. They are an expanded scalar 0, so they need no memory.
Tensor zeros_view(const Tensor& x);

void require_float(DType t);  // throws DTypeError
void require_index(DType t);  // throws DTypeError if it is neither i64 nor i32
void check_rank_at_least(const Operand& x, int rank);
void require_shape(const char* name, const Operand& x, const Shape& shape);
[[noreturn]] void refuse_shape(const char* name, const Operand& x, const std::string& expected);
void require_rng(const Operand& rng);  // requires the tensor Graph::rng()
// Throws Error if the number of operands is outside of the limits. Ops need this check because they can be
// recorded by name.
void require_operands(std::span<const Operand> in, std::size_t least, std::size_t most);
inline void require_operands(std::span<const Operand> in, std::size_t count) {
  require_operands(in, count, count);
}

// The first of a list of tensors. Throws Error, with the op and the line, if the list is empty.
const Tensor& first_of(const std::vector<Tensor>& xs, const std::string& op, const Where& where);

// Returns the output of a pointwise op: with the layout of the first dense operand, or row-major if none is
// dense.
std::vector<OutSpec> pointwise_output(std::span<const Operand> in, DType out);
std::vector<OutSpec> row_major_output(DType dtype, const Shape& shape);
// The shape without these axes. If `keepdim` is true, the axes have size 1 instead.
Shape reduced_shape(const Shape& shape, const Axes& axes, bool keepdim);
// The shape without its last axis: one element per row.
Shape without_last_axis(Shape shape);

// Casts x to `dtype` if both are floating. Otherwise returns x unchanged, so that the op's check rejects it.
Tensor cast_float(const Tensor& x, DType dtype);

// Whether the last axis is contiguous. last_axis_contiguous() returns the tensor if it is, otherwise a copy.
bool is_last_axis_contiguous(const Layout& l);
Tensor last_axis_contiguous(const Tensor& x);

// Same as check_options(), for numbers that are not attributes of an op. The error contains the caller's
// line.
template <class E = Error>
void check_options_at(const Where& where, std::string_view who, std::initializer_list<OptionCheck> all) {
  if (const std::string mistake = range_mistake(all); !mistake.empty())
    throw E(in_context("[" + std::string(who) + "] " + mistake, where));
}

// For Op::roundings: the number of elements of `terms` per element of `sum`.
inline double f16_split_of(const Operand& sum, const Operand& terms) {
  return static_cast<double>(terms.layout.numel()) /
         static_cast<double>(std::max<std::int64_t>(1, sum.layout.numel()));
}

// For Op::cost: `flops` FLOPs per element of an operand.
template <int flops, std::size_t operand = 0>
Cost flops_each(std::span<const Operand> in, std::span<const Operand>, const Attrs&) {
  return {.flops = flops * static_cast<double>(in[operand].layout.numel())};
}
// For Op::cost: the cost of a GEMM.
Cost product_cost(std::span<const Operand> in, std::span<const Operand> out, const Attrs&);

// Returns an input of a sample: i64 indices in [0, size).
SampleInput sample_indices(const Shape& shape, double size);
// Samples of f(x, axis, indices, src) that index the first, a middle and the last axis.
std::vector<Sample> samples_by_index(Tensor (*f)(TensorArg, std::int64_t, TensorArg, TensorArg));

// Shared by ops that return a loss per row; defined in cross_entropy.cpp.

// Throws Error, with the caller's line, if the smoothing is not in [0, 1].
void check_smoothing(const char* op, double smoothing, const Where& where);
// Reduces the losses of all rows whose target is not `ignore_index`. Returns 0 if there are no such rows.
Tensor reduced(const Tensor& loss, const Tensor& targets, Reduction reduction, std::int64_t ignore_index);

// For each row of logits: c = max x, and x - c, in the compute type. c and log π are not added, because for a
// large c, ξ = c + log π has no bits left for log π.
struct LoweredLogits {
  explicit LoweredLogits(const Tensor& logits);
  Tensor log_sum() const;  // log π [..., 1]
  Tensor top, x_minus_c;   // [..., 1], [..., V]
};
// [· = t] as booleans with the shape of the logits.
Tensor is_target(const Tensor& logits, const Tensor& targets);

}  // namespace tg::detail
