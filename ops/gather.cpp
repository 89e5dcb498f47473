// Selects elements of an axis by index, one index per element, as in PyTorch. gather reads the elements and
// scatter_add adds to them. Each op is the gradient of the other op. With i = indices[a, b, c] and axis 1:
//      gather: out[a, b, c] = x[a, i, c];   scatter_add: out = x, out[a, i, c] += src[a, b, c]
#include "ops/common.h"
#include "ops/index.h"

namespace tg {

namespace {

// Checks that indices have x's rank and are not larger than x along the other axes.
void check_within(const Operand& x, const Operand& indices, const Attrs& attrs) {
  detail::require_index(indices.dtype);
  if (indices.layout.rank() != x.layout.rank())
    throw ShapeError("the indices must have as many dimensions as the tensor");
  for (int a = 0; a < x.layout.rank(); ++a)
    if (a != attrs.as<AxisAttrs>().axis && indices.shape()[a] > x.shape()[a])
      throw ShapeError("the indices reach beyond the tensor along axis " + std::to_string(a));
}

std::vector<OutSpec> infer_gather(std::span<const Operand> in, const Attrs& attrs) {
  detail::require_operands(in, 2);
  check_within(in[0], in[1], attrs);
  return detail::row_major_output(in[0].dtype, in[1].shape());
}

std::vector<OutSpec> infer_scatter(std::span<const Operand> in, const Attrs& attrs) {
  detail::require_operands(in, 3);
  const Operand &x = in[0], &indices = in[1], &src = in[2];
  check_within(x, indices, attrs);
  if (x.dtype != src.dtype) throw DTypeError("the tensor and the added values differ in dtype");
  if (x.dtype == boolean) throw DTypeError("needs numbers, not booleans");
  if (src.shape() != indices.shape()) throw ShapeError("the added values must have the shape of the indices");
  return detail::row_major_output(x.dtype, x.shape());
}

using detail::sample_indices;

std::vector<Sample> gather_samples() {
  return {{"last", {{{3, 5}}, sample_indices({3, 2}, 5)}, [](auto x) { return gather(x[0], -1, x[1]); }},
          {"part of the rows", {{{4, 3, 2}}, sample_indices({5, 2, 2}, 4)}, [](auto x) {
             return gather(x[0], 0, x[1]);
           }}};
}

std::vector<Sample> scatter_samples() {
  const auto along = [](std::int64_t axis) {
    return [axis](std::span<const Tensor> x) { return scatter_add(x[0], axis, x[1], x[2]); };
  };
  return {{"last", {{{3, 4}}, sample_indices({3, 6}, 4), {{3, 6}}}, along(-1)},
          {"rows", {{{3, 4}}, sample_indices({5, 4}, 3), {{5, 4}}}, along(0)},
          {"part of the indices", {{{3, 4}}, sample_indices({5, 2}, 3), {{6, 3}}}, along(0)},
          {"one_hot", {{{2, 3, 5}}, sample_indices({2, 3}, 5)}, [](auto x) {
             return x[0] * one_hot(x[1], 5, x[0].dtype());
           }}};
}

}  // namespace

const Op& gather_op = *define_op(
    {.name = "gather",
     .doc = "x, indices → y: y[a, b, c] = x[a, indices[a, b, c], c]",
     .infer = infer_gather,
     .vjp = [](const Backprop& g) -> Tensors {
       return {scatter_add(zeros_like(g.in[0]), g.attrs.as<AxisAttrs>().axis, g.in[1], g.z[0]), Tensor()};
     },
     .samples = gather_samples});

const Op& scatter_add_op =
    *define_op({.name = "scatter_add",
                .doc = "x, indices, src → y: y = x, then y[a, indices[a, b, c], c] += src[a, b, c]",
                .infer = infer_scatter,
                .vjp = [](const Backprop& g) -> Tensors {
                  Tensor zs;
                  if (g.needed[2]) zs = gather(g.z[0], g.attrs.as<AxisAttrs>().axis, g.in[1]);
                  return {g.z[0], Tensor(), zs};
                },
                .samples = scatter_samples,
                .cost = detail::flops_each<4, 2>,
                .roundings =
                    [](std::span<const Operand> in, std::span<const Operand>, const Attrs& a) {
                      // In the worst case, all indices along the axis are equal.
                      return static_cast<double>(in[1].shape()[static_cast<int>(a.as<AxisAttrs>().axis)]);
                    },
                .inplace = {{0, 0}}});

Tensor gather(TensorArg x, std::int64_t axis, TensorArg indices) {
  return record(gather_op, {x, indices}, AxisAttrs{detail::axis_of(x, axis, "gather")});
}

Tensor scatter_add(TensorArg x, std::int64_t axis, TensorArg indices, TensorArg src) {
  const Scope scope(x);
  const std::int64_t a = detail::axis_of(x, axis, "scatter_add");
  Tensor part = src.tensor();  // the part of src that the indices cover
  const Shape& reach = indices.tensor().shape();
  for (int i = 0; i < part.rank() && part.rank() == reach.size(); ++i)
    if (part.shape()[i] > reach[i]) part = slice(part, i, 0, reach[i]);
  return record(scatter_add_op, {x, indices, part}, AxisAttrs{a});
}

Tensor one_hot(TensorArg indices, std::int64_t n, DType dtype) {
  const Scope scope("one_hot", indices.where());
  const Tensor place = unsqueeze(indices, -1);
  if (n < 0)
    throw ShapeError(
        in_context("[one_hot] got " + std::to_string(n) + " classes, expected at least 0", indices.where()));
  Shape shape = place.shape();
  const Tensor one = expand(full(place.graph(), {}, 1, dtype), shape);
  shape[shape.size() - 1] = n;
  return scatter_add(full(place.graph(), shape, 0, dtype), -1, place, one);
}

}  // namespace tg
