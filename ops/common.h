// Functions that op definitions share: argument checks, broadcasting, dtype promotion, and parts of losses.
#pragma once

#include <tilegrad/core/base/range.h>
#include <tilegrad/ops/ops.h>

namespace tg {
using Tensors = std::vector<Tensor>;

// Views y, a reduction of a tensor of this shape over these axes (kept or not), with the shape of that
// tensor.
Tensor stretch(const Tensor& y, const Shape& shape, const Axes& axes);

}  // namespace tg

namespace tg::detail {

// The common dtype: the wider floating dtype (f32 for bf16 with f16), the floating one of the two, or the
// wider integer dtype. A boolean becomes the other dtype.
DType promote(DType a, DType b);

// Two arguments as tensors with the same shape and dtype.
struct Broadcast {
  Tensor a, b;
};
Broadcast broadcast_pair(const Op& op, const TensorArg& a, const TensorArg& b);

// Calls f and adds the operand and the caller's line to a ShapeError that it throws.
template <class F>
auto at_call(const TensorArg& x, F f) {
  try {
    return f();
  } catch (const ShapeError& e) {
    throw ShapeError(in_context(std::string(e.what()) + "; got " + x.tensor().text(), x.where()));
  }
}

// The axis counted from the front. The error names the op and the caller's line.
std::int64_t axis_of(const TensorArg& x, std::int64_t axis, const char* what);
// Same for several axes, sorted; an empty list means all axes.
Axes axes_of(const TensorArg& x, const Axes& axes, const char* what);
// Zeros with x's shape and dtype that use no memory: one expanded 0.
Tensor zeros_view(const Tensor& x);

void require_float(DType t);  // throws DTypeError
void require_index(DType t);  // throws DTypeError unless it is i64 or i32
void check_rank_at_least(const Operand& x, int rank);
void require_shape(const char* name, const Operand& x, const Shape& shape);
[[noreturn]] void refuse_shape(const char* name, const Operand& x, const std::string& expected);
void require_rng(const Operand& rng);  // requires the tensor Graph::rng()
// Throws Error unless the number of operands is within the limits, because ops can also be recorded by name.
void require_operands(std::span<const Operand> in, std::size_t least, std::size_t most);
inline void require_operands(std::span<const Operand> in, std::size_t count) {
  require_operands(in, count, count);
}

// The first of a list of tensors. Throws Error, with the op and the line, if the list is empty.
const Tensor& first_of(const std::vector<Tensor>& xs, const std::string& op, const Where& where);

// One output of a pointwise op, with the layout of the first dense operand, or row-major.
std::vector<OutSpec> pointwise_output(std::span<const Operand> in, DType out);
std::vector<OutSpec> row_major_output(DType dtype, const Shape& shape);
// The shape without these axes, or with size 1 along them.
Shape reduced_shape(const Shape& shape, const Axes& axes, bool keepdim);
// The shape without its last axis: one element per row.
Shape without_last_axis(Shape shape);

// x in `dtype` if both are floating; otherwise x unchanged, so that the op's check rejects it.
Tensor cast_float(const Tensor& x, DType dtype);

// Whether the last axis is contiguous. last_axis_contiguous() returns the tensor, or a copy for which it is.
bool is_last_axis_contiguous(const Layout& l);
Tensor last_axis_contiguous(const Tensor& x);

// Same as check_options(), with the caller's line, for numbers that are not attributes of an op.
template <class E = Error>
void check_options_at(const Where& where, std::string_view who, std::initializer_list<OptionCheck> all) {
  if (const std::string mistake = range_mistake(all); !mistake.empty())
    throw E(in_context("[" + std::string(who) + "] " + mistake, where));
}

// For Op::roundings: the number of elements of `terms` per element of a sum.
inline double f16_split_of(const Operand& sum, const Operand& terms) {
  return static_cast<double>(terms.layout.numel()) /
         static_cast<double>(std::max<std::int64_t>(1, sum.layout.numel()));
}

// For Op::cost: `flops` FLOPs per element of an operand.
template <int flops, std::size_t operand = 0>
Cost flops_each(std::span<const Operand> in, std::span<const Operand>, const Attrs&) {
  return {.flops = flops * static_cast<double>(in[operand].layout.numel())};
}
// For Op::cost: a GEMM.
Cost product_cost(std::span<const Operand> in, std::span<const Operand> out, const Attrs&);

// An input of a sample: i64 indices in [0, size).
SampleInput sample_indices(const Shape& shape, double size);
// Samples of f(x, axis, indices, src) that index the first, a middle and the last axis.
std::vector<Sample> samples_by_index(Tensor (*f)(TensorArg, std::int64_t, TensorArg, TensorArg));

// Shared by ops that return a loss per row; defined in cross_entropy.cpp.

// Throws Error, with the line, unless the smoothing is in [0, 1].
void check_smoothing(const char* op, double smoothing, const Where& where);
// Reduces the losses of all rows whose target is not `ignore_index`; 0 if there are none.
Tensor reduced(const Tensor& loss, const Tensor& targets, Reduction reduction, std::int64_t ignore_index);

// c = max x of each row of logits, and x - c, in the compute type. For a large c, ξ = c + log π has no bits
// left for log π.
struct LoweredLogits {
  explicit LoweredLogits(const Tensor& logits);
  Tensor log_sum() const;  // log π [..., 1]
  Tensor top, x_minus_c;   // [..., 1], [..., V]
};
// [· = t] as booleans with the shape of the logits.
Tensor is_target(const Tensor& logits, const Tensor& targets);

}  // namespace tg::detail
