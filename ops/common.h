// What op definitions share: argument checks, broadcasting, dtype promotion, and parts of losses.
#pragma once

#include <tilegrad/core/base/range.h>
#include <tilegrad/ops/ops.h>

namespace tg {
using Tensors = std::vector<Tensor>;

// y, a reduction of a tensor of this shape over these axes (kept or not), as a view of the shape.
Tensor stretch(const Tensor& y, const Shape& shape, const Axes& axes);

}  // namespace tg

namespace tg::detail {

// Floating types: the wider, and f32 for bf16 with f16; a floating one beats integers; integers: the wider;
// bool loses.
DType promote(DType a, DType b);

// Two arguments as tensors of one shape and dtype.
struct Broadcast {
  Tensor a, b;
};
Broadcast broadcast_pair(const Op& op, const TensorArg& a, const TensorArg& b);

// Calls f, which may throw a ShapeError of a layout; what then arrives has the operand and the caller's line.
template <class F>
auto at_call(const TensorArg& x, F f) {
  try {
    return f();
  } catch (const ShapeError& e) {
    throw ShapeError(in_context(std::string(e.what()) + "; got " + x.tensor().text(), x.where()));
  }
}

// The axis counted from the front; the error names the op and the caller's line.
std::int64_t axis_of(const TensorArg& x, std::int64_t axis, const char* what);
// The same for several axes, sorted; an empty list means all of them.
Axes axes_of(const TensorArg& x, const Axes& axes, const char* what);
// Zeros of x's shape and dtype that take no memory: one 0, expanded.
Tensor zeros_view(const Tensor& x);

void require_float(DType t);  // throws DTypeError
void require_index(DType t);  // i64 or i32, else throws DTypeError
void check_rank_at_least(const Operand& x, int rank);
void require_shape(const char* name, const Operand& x, const Shape& shape);
[[noreturn]] void refuse_shape(const char* name, const Operand& x, const std::string& expected);
void require_rng(const Operand& rng);  // the tensor Graph::rng()
// Throws Error for fewer operands than `least`, or more than `most`: ops can be recorded by name too.
void require_operands(std::span<const Operand> in, std::size_t least, std::size_t most);
inline void require_operands(std::span<const Operand> in, std::size_t count) {
  require_operands(in, count, count);
}

// The first of a list of tensors; throws Error, with the op and the line, if there is none.
const Tensor& first_of(const std::vector<Tensor>& xs, const std::string& op, const Where& where);

// One output of a pointwise op: laid out like the first dense operand, else row-major.
std::vector<OutSpec> pointwise_output(std::span<const Operand> in, DType out);
std::vector<OutSpec> row_major_output(DType dtype, const Shape& shape);
// The shape without these axes, or with size 1 along them.
Shape reduced_shape(const Shape& shape, const Axes& axes, bool keepdim);
// The shape without its last axis: an element for each row.
Shape without_last_axis(Shape shape);

// x in `dtype` if both are floating; else x unchanged, for the op's check to refuse.
Tensor cast_float(const Tensor& x, DType dtype);

// Whether elements along the last axis are neighbours; and the tensor, as a copy unless they are.
bool is_last_axis_contiguous(const Layout& l);
Tensor last_axis_contiguous(const Tensor& x);

// check_options with the caller's line, for numbers that are not among an op's attributes.
template <class E = Error>
void check_options_at(const Where& where, std::string_view who, std::initializer_list<OptionCheck> all) {
  if (const std::string mistake = range_mistake(all); !mistake.empty())
    throw E(in_context("[" + std::string(who) + "] " + mistake, where));
}

// For Op::roundings: the number of elements of `terms` that are added for each element of a sum.
inline double terms_of(const Operand& sum, const Operand& terms) {
  return static_cast<double>(terms.layout.numel()) /
         static_cast<double>(std::max<std::int64_t>(1, sum.layout.numel()));
}

// For Op::cost: so many FLOPs for each element of an operand.
template <int flops, std::size_t operand = 0>
Cost flops_each(std::span<const Operand> in, std::span<const Operand>, const Attrs&) {
  return {.flops = flops * static_cast<double>(in[operand].layout.numel())};
}
// For Op::cost of a matrix product.
Cost product_cost(std::span<const Operand> in, std::span<const Operand> out, const Attrs&);

// A sample's input: i64 indices in [0, size).
SampleInput sample_indices(const Shape& shape, double size);
// Samples of f(x, axis, indices, src) with slices at these indices of the first, a middle and the last axis.
std::vector<Sample> samples_by_index(Tensor (*f)(TensorArg, std::int64_t, TensorArg, TensorArg));

// What the ops that give a loss for each row share, in cross_entropy.cpp.

// Throws Error, with the line, unless the smoothing is 0 to 1.
void check_smoothing(const char* op, double smoothing, const Where& where);
// The loss of all rows, of those whose target is not `ignore_index`; 0 if there is none.
Tensor reduced(const Tensor& loss, const Tensor& targets, Reduction reduction, std::int64_t ignore_index);

// c = max x of each row of logits and x - c, in the compute type: ξ = c + log π has no bits for log π if c is
// large.
struct LoweredLogits {
  explicit LoweredLogits(const Tensor& logits);
  Tensor log_sum() const;  // log π [..., 1]
  Tensor top, x_minus_c;   // [..., 1], [..., V]
};
// [· = t] as booleans of the logits' shape.
Tensor is_target(const Tensor& logits, const Tensor& targets);

}  // namespace tg::detail
