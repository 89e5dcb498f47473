// Selects slices of an axis by index. index_select reads the slices and index_add adds to them. Each op is
// the gradient of the other. embedding is index_select on the rows of a table.
#include "ops/index.h"
#include "ops/common.h"

namespace tg {

namespace {

// x's shape with the axis replaced by the axes of the indices.
Shape selected(const Shape& x, int axis, const Shape& indices) {
  Shape out;
  for (int a = 0; a < axis; ++a) out.push_back(x[a]);
  for (std::int64_t d : indices) out.push_back(d);
  for (int a = axis + 1; a < x.size(); ++a) out.push_back(x[a]);
  return out;
}

std::vector<OutSpec> infer_select(std::span<const Operand> in, const Attrs& attrs) {
  detail::require_operands(in, 2);
  detail::require_index(in[1].dtype);
  const int axis = static_cast<int>(attrs.as<AxisAttrs>().axis);
  return detail::row_major_output(in[0].dtype, selected(in[0].shape(), axis, in[1].shape()));
}

std::vector<OutSpec> infer_embedding(std::span<const Operand> in, const Attrs& attrs) {
  detail::require_operands(in, 2);
  if (in[0].layout.rank() != 2) throw ShapeError("the weight must have two dimensions, [rows, columns]");
  return infer_select(in, attrs);
}

std::vector<OutSpec> infer_add(std::span<const Operand> in, const Attrs& attrs) {
  detail::require_operands(in, 3);
  const Operand &x = in[0], &indices = in[1], &src = in[2];
  detail::require_index(indices.dtype);
  if (x.dtype != src.dtype) throw DTypeError("the tensor and the added values differ in dtype");
  if (x.dtype == boolean) throw DTypeError("needs numbers, not booleans");
  const Shape expected = selected(x.shape(), static_cast<int>(attrs.as<AxisAttrs>().axis), indices.shape());
  if (src.shape() != expected) throw ShapeError("the added values must have shape " + expected.text());
  return detail::row_major_output(x.dtype, x.shape());
}

Tensors select_gradient(const Backprop& g) {
  return {index_add(zeros_like(g.in[0]), g.attrs.as<AxisAttrs>().axis, g.in[1], g.z[0]), Tensor()};
}

using detail::sample_indices;

std::vector<Sample> embedding_samples() {
  const auto call = [](std::span<const Tensor> x) { return embedding(x[0], x[1]); };
  return {{"batch", {{{5, 4}}, sample_indices({2, 3}, 5)}, call},
          {"none", {{{5, 4}}, sample_indices({0}, 5)}, call}};
}

std::vector<Sample> select_samples() {
  const auto along = [](std::int64_t axis) {
    return [axis](std::span<const Tensor> x) { return index_select(x[0], axis, x[1]); };
  };
  return {{"rows", {{{4, 3}}, sample_indices({6}, 4)}, along(0)},
          {"middle", {{{2, 5, 3}}, sample_indices({2, 2}, 5)}, along(1)},
          {"last", {{{3, 4}}, sample_indices({3}, 4)}, along(-1)}};
}

}  // namespace

const Op& embedding_op =
    *define_op({.name = "embedding",
                .doc = "weight [V, C], indices [...] → y [..., C]: y[i, :] = weight[indices[i], :]",
                .infer = infer_embedding,
                .vjp = select_gradient,
                .samples = embedding_samples,
                .recompute = Recompute::cheap});

const Op& index_select_op = *define_op(
    {.name = "index_select",
     .doc = "x, indices → y: y[a, i, c] = x[a, indices[i], c]; the axes of the indices replace the axis",
     .infer = infer_select,
     .vjp = select_gradient,
     .samples = select_samples});

const Op& index_add_op = *define_op(
    {.name = "index_add",
     .doc = "x, indices, src → y: y = x, then y[a, indices[i], c] += src[a, i, c]; repeated indices add up",
     .infer = infer_add,
     .vjp = [](const Backprop& g) -> Tensors {
       Tensor zs;
       if (g.needed[2]) zs = index_select(g.z[0], g.attrs.as<AxisAttrs>().axis, g.in[1]);
       return {g.z[0], Tensor(), zs};
     },
     .samples = [] { return detail::samples_by_index(index_add); },
     .cost = detail::flops_each<1, 2>,
     .roundings =
         [](std::span<const Operand> in, std::span<const Operand>, const Attrs&) {
           return static_cast<double>(in[1].layout.numel());  // in the worst case, all indices are equal
         },
     .inplace = {{0, 0}}});

Tensor embedding(TensorArg weight, TensorArg indices) {
  return record(embedding_op, {weight, indices}, AxisAttrs{0});
}

Tensor index_select(TensorArg x, std::int64_t axis, TensorArg indices) {
  return record(index_select_op, {x, indices}, AxisAttrs{detail::axis_of(x, axis, "index_select")});
}

Tensor index_add(TensorArg x, std::int64_t axis, TensorArg indices, TensorArg src) {
  return record(index_add_op, {x, indices, src}, AxisAttrs{detail::axis_of(x, axis, "index_add")});
}

}  // namespace tg
