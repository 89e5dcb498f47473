// Slices of an axis written by number, as rows of a cache are: a row of numbers says where each goes.
#include "ops/common.h"
#include "ops/index.h"

namespace tg {

extern const Op index_assign_op;

namespace {

std::vector<OutSpec> infer_assign(std::span<const Operand> in, const Attrs& attrs) {
  detail::require_operands(in, 3);
  const Operand &x = in[0], &indices = in[1], &src = in[2];
  detail::require_index(indices.dtype);
  if (x.dtype != src.dtype) throw DTypeError("the tensor and what is assigned differ in dtype");
  const int axis = static_cast<int>(attrs.as<AxisAttrs>().axis);
  Shape expected;
  for (int a = 0; a < axis; ++a) expected.push_back(x.shape()[a]);
  for (const std::int64_t n : indices.shape()) expected.push_back(n);
  for (int a = axis + 1; a < x.layout.rank(); ++a) expected.push_back(x.shape()[a]);
  if (src.shape() != expected) throw ShapeError("what is assigned must have shape " + expected.text());
  return detail::row_major_output(x.dtype, x.shape());
}

// The gradient of src: z where its slices went, if no later one went to the same place.
Tensor source_gradient(const Backprop& g) {
  const Tensor &x = g.in[0], &indices = g.in[1], &z = g.z[0];
  const std::int64_t axis = g.attrs.as<AxisAttrs>().axis, size = x.shape()[static_cast<int>(axis)];
  if (size == 0) return zeros_like(g.in[2]);
  const std::int64_t count = indices.numel();
  const Tensor numbers = reshape(arange(z.graph(), 0, static_cast<double>(count)), indices.shape()),
               last = index_assign(full(z.graph(), {size}, -1, i64), 0, indices, numbers),
               inside = maximum(indices, 0);
  Shape shape = indices.shape();
  for (int a = static_cast<int>(axis) + 1; a < x.shape().size(); ++a) shape.push_back(1);
  return where(reshape(equal(index_select(last, 0, inside), numbers), shape), index_select(z, axis, inside),
               0);
}

}  // namespace

extern const Op index_assign_op{
    .name = "index_assign",
    .doc =
        "x, indices, src → y: y = x, then y[a, indices[i], c] = src[a, i, c]; −1: nowhere; of equal indices "
        "the last counts",
    .infer = infer_assign,
    .vjp = [](const Backprop& g) -> Tensors {
      Tensor zx, zs;
      if (g.needed[0]) zx = index_assign(g.z[0], g.attrs.as<AxisAttrs>().axis, g.in[1], zeros_like(g.in[2]));
      if (g.needed[2]) zs = source_gradient(g);
      return {zx, Tensor(), zs};
    },
    .samples = []() -> std::vector<Sample> {
      return {{"rows",
               {{{4, 3}}, detail::sample_indices({6}, 4), {{6, 3}}},
               [](auto x) { return Tensors{index_assign(x[0], 0, x[1], x[2])}; }},
              {"some of them",
               {{{5, 4}}, detail::sample_indices({4}, 6), {{4, 4}}},
               [](auto x) { return Tensors{index_assign(x[0], 0, x[1] - 1, x[2])}; }},
              {"middle",
               {{{2, 5, 3}}, detail::sample_indices({2, 2}, 5), {{2, 2, 2, 3}}},
               [](auto x) { return Tensors{index_assign(x[0], 1, x[1], x[2])}; }},
              {"last", {{{3, 4}}, detail::sample_indices({3}, 4), {{3, 3}}}, [](auto x) {
                 return Tensors{index_assign(x[0], 1, x[1], x[2])};
               }}};
    },
    .inplace = {{0, 0}}};

Tensor index_assign(TensorArg x, std::int64_t axis, TensorArg indices, TensorArg src) {
  return record(index_assign_op, {x, indices, src}, AxisAttrs{detail::axis_of(x, axis, "index_assign")});
}

}  // namespace tg
