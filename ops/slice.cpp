// slice returns a view of a part of an axis. slice_assign copies a tensor and overwrites such a part.
// slice_at copies a part; its start is a tensor.
#include <algorithm>

#include "ops/common.h"
#include "ops/index.h"

namespace tg {

namespace {

struct SliceAttrs {
  std::int64_t axis, start, stop, step;
  void fields(auto&& field) const {
    field("axis", axis), field("start", start), field("stop", stop), field("step", step, 1);
  }
};

// The first index of slice(x, axis, start, …): a negative start counts from the end, and both ends are
// clipped.
std::int64_t first_of(std::int64_t start, std::int64_t size) {
  return std::clamp<std::int64_t>(start < 0 ? start + size : start, 0, size);
}

Tensors slice_gradient(const Backprop& g) {
  const auto& s = g.attrs.as<SliceAttrs>();
  const std::int64_t first = first_of(s.start, g.in[0].size(s.axis));
  return {slice_assign(zeros_like(g.in[0]), g.z[0], s.axis, first, s.step)};
}

void check_one_index(const Operand& start) {
  detail::require_index(start.dtype);
  if (start.layout.numel() != 1)
    throw ShapeError("the start must be one number, got shape " + start.shape().text());
}

std::vector<OutSpec> infer_assign(std::span<const Operand> in, const Attrs& attrs) {
  detail::require_operands(in, 2, 3);
  const auto& a = attrs.as<SliceAssignAttrs>();
  const Operand &x = in[0], &src = in[1];
  const int axis = static_cast<int>(a.axis);
  if (x.dtype != src.dtype) throw DTypeError("the tensor and the assigned values differ in dtype");
  Shape region = x.shape();
  if (src.layout.rank() == region.size()) region[axis] = src.shape()[axis];
  if (src.shape() != region)
    throw ShapeError("the assigned values may differ from the tensor in size along axis " +
                     std::to_string(axis) + " only");
  if (a.step < 1) throw ShapeError("step is " + std::to_string(a.step) + ", expected 1 or more");
  const std::int64_t n = region[axis], size = x.shape()[axis];
  // (size - 1 - start) / step is the number of steps before the end. Computing start + n·step instead could
  // overflow.
  const bool fits =
      a.start >= 0 && (n == 0 ? a.start <= size : a.start < size && n - 1 <= (size - 1 - a.start) / a.step);
  if (!fits)
    throw ShapeError(std::to_string(n) + " positions from " + std::to_string(a.start) + " by " +
                     std::to_string(a.step) + " do not fit into an axis of size " + std::to_string(size));
  if (in.size() == 3) check_one_index(in[2]);
  return {{x.dtype, x.layout.is_dense() ? dense_like(x.shape(), x.layout) : row_major(x.shape())}};
}

Tensors assign_gradient(const Backprop& g) {
  const auto& a = g.attrs.as<SliceAssignAttrs>();
  const Tensor &z = g.z[0], &src = g.in[1];
  const bool given = g.in.size() == 3;
  const std::int64_t n = src.size(a.axis);
  Tensor zx, zs;
  if (g.needed[0]) {
    const Tensor none = detail::zeros_view(src);
    zx = given ? slice_assign(z, none, a.axis, g.in[2]) : slice_assign(z, none, a.axis, a.start, a.step);
  }
  if (g.needed[1])
    zs = given ? slice_at(z, a.axis, g.in[2], n) : slice(z, a.axis, a.start, a.stop(n), a.step);
  return given ? Tensors{zx, zs, Tensor()} : Tensors{zx, zs};
}

std::vector<Sample> assign_samples() {
  const auto at_given = [](std::int64_t axis) {
    return [axis](std::span<const Tensor> x) { return slice_assign(x[0], x[1], axis, x[2]); };
  };
  return {{"fixed", {{{3, 5}}, {{3, 2}}}, [](auto x) { return slice_assign(x[0], x[1], 1, 2); }},
          {"stepped", {{{7, 3}}, {{3, 3}}}, [](auto x) { return slice_assign(x[0], x[1], 0, 1, 2); }},
          {"start given", {{{2, 5, 3}}, {{2, 2, 3}}, {{}, {Fill::index, 0, 4}, i64}}, at_given(1)},
          {"start given in i32", {{{6, 3}}, {{2, 3}}, {{1}, {Fill::index, 0, 5}, i32}}, at_given(0)}};
}

std::vector<Sample> read_samples() {
  const auto read = [](std::int64_t axis, std::int64_t length) {
    return [axis, length](std::span<const Tensor> x) { return slice_at(x[0], axis, x[1], length); };
  };
  return {{"rows", {{{5, 3}}, {{}, {Fill::index, 0, 4}, i64}}, read(0, 2)},
          {"columns", {{{2, 5, 3}}, {{1}, {Fill::index, 0, 3}, i32}}, read(1, 3)}};
}

}  // namespace

const Op& slice_op = *define_op(
    {.name = "slice",
     .doc = "x → y: elements start, start + step, … before stop of an axis; negative ends count from its end",
     .infer =
         [](std::span<const Operand> in, const Attrs& a) {
           detail::require_operands(in, 1);
           const auto& s = a.as<SliceAttrs>();
           return std::vector<OutSpec>{
               {in[0].dtype, slice(in[0].layout, s.axis, s.start, s.stop, s.step), 0}};
         },
     .vjp = slice_gradient,
     .samples = []() -> std::vector<Sample> {
       return {{"middle", {{{3, 5}}}, [](auto x) { return slice(x[0], 1, 1, 4); }},
               {"negative", {{{3, 5}}}, [](auto x) { return slice(x[0], -2, -2, 3); }},
               {"stepped", {{{2, 7, 3}}}, [](auto x) { return slice(x[0], 1, 1, 7, 3); }},
               {"empty", {{{3, 5}}}, [](auto x) { return slice(x[0], 0, 2, 2); }}};
     },
     .view = true});

const Op& slice_assign_op = *define_op({.name = "slice_assign",
                                        .doc = "x, src, start? → y: x with src written at start, start + "
                                               "step, … of an axis; start is an attribute or a tensor",
                                        .infer = infer_assign,
                                        .vjp = assign_gradient,
                                        .samples = assign_samples,
                                        .inplace = {{0, 0}}});

const Op& slice_at_op = *define_op(
    {.name = "slice_at",
     .doc = "x, start → y: `length` elements of an axis, from an index that is a tensor",
     .infer =
         [](std::span<const Operand> in, const Attrs& attrs) {
           detail::require_operands(in, 2);
           const auto& a = attrs.as<SliceAtAttrs>();
           check_one_index(in[1]);
           Shape shape = in[0].shape();
           const int axis = static_cast<int>(a.axis);
           if (a.length < 0 || a.length > shape[axis])
             throw ShapeError("length is " + std::to_string(a.length) + ", expected 0 to " +
                              std::to_string(shape[axis]));
           shape[axis] = a.length;
           return detail::row_major_output(in[0].dtype, shape);
         },
     .vjp = [](const Backprop& g) -> Tensors {
       return {slice_assign(zeros_like(g.in[0]), g.z[0], g.attrs.as<SliceAtAttrs>().axis, g.in[1]), Tensor()};
     },
     .samples = read_samples});

Tensor slice(TensorArg x, std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step) {
  return record(slice_op, {x}, SliceAttrs{axis, start, stop, step});
}

Tensor slice_assign(TensorArg x, TensorArg src, std::int64_t axis, std::int64_t start, std::int64_t step) {
  const std::int64_t a = detail::axis_of(x, axis, "slice_assign");
  const std::int64_t first = start < 0 ? start + x.tensor().size(a) : start;
  return record(slice_assign_op, {x, src}, SliceAssignAttrs{a, first, step});
}

Tensor slice_assign(TensorArg x, TensorArg src, std::int64_t axis, TensorArg start) {
  return record(slice_assign_op, {x, src, start},
                SliceAssignAttrs{detail::axis_of(x, axis, "slice_assign"), 0, 1});
}

Tensor slice_at(TensorArg x, std::int64_t axis, TensorArg start, std::int64_t length) {
  return record(slice_at_op, {x, start}, SliceAtAttrs{detail::axis_of(x, axis, "slice_at"), length});
}

Tensor detail::add_gradient(const Tensor& a, const Tensor& z) {
  Graph& graph = z.graph();
  const Node& node = graph.node_of(z.id());
  if (node.op != &slice_assign_op || node.in.size() != 2) return add(a, z);
  const Node& around = graph.node_of(node.in[0]);
  if (around.op != &full_op || around.attrs.as<FullAttrs>().value != 0) return add(a, z);
  const SliceAssignAttrs s = node.attrs.as<SliceAssignAttrs>();  // a copy, because recording moves the nodes
  const Tensor part = graph.tensor(node.in[1]);
  const std::int64_t stop = s.stop(part.size(s.axis));
  return slice_assign(a, add(slice(a, s.axis, s.start, stop, s.step), part), s.axis, s.start, s.step);
}

}  // namespace tg
