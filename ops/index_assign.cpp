// Writes slices of an axis by index, for example rows of a cache. A list of tensors is written in one step.
#include "ops/common.h"
#include "ops/index.h"

namespace tg {

extern const Op& index_assign_op;

namespace {

// Inputs: x and src of each tensor, then the indices.
std::vector<OutSpec> infer_assign(std::span<const Operand> in, const Attrs& attrs) {
  if (in.size() < 3 || in.size() % 2 == 0)
    throw ShapeError("expected pairs of a tensor and the values to assign, followed by indices");
  const Operand& indices = in.back();
  detail::require_index(indices.dtype);
  const int axis = static_cast<int>(attrs.as<AxisAttrs>().axis);
  std::vector<OutSpec> out;
  for (std::size_t i = 0; i + 1 < in.size(); i += 2) {
    const Operand &x = in[i], &src = in[i + 1];
    if (x.dtype != src.dtype || x.dtype != in[0].dtype)
      throw DTypeError("the tensor and the assigned values differ in dtype");
    if (axis >= x.layout.rank())
      throw ShapeError("axis " + std::to_string(axis) + " of a tensor of " + x.shape().text());
    Shape expected;
    for (int a = 0; a < axis; ++a) expected.push_back(x.shape()[a]);
    for (const std::int64_t n : indices.shape()) expected.push_back(n);
    for (int a = axis + 1; a < x.layout.rank(); ++a) expected.push_back(x.shape()[a]);
    if (src.shape() != expected) throw ShapeError("the assigned values must have shape " + expected.text());
    out.push_back(detail::row_major_output(x.dtype, x.shape())[0]);
  }
  return out;
}

// The gradient of src. For each slice, it is z at the slice's position, or 0 if a later slice was written to
// the same position.
Tensor source_gradient(const Tensor& src, const Tensor& indices, const Tensor& z, std::int64_t axis) {
  const std::int64_t size = z.shape()[static_cast<int>(axis)];
  if (size == 0) return zeros_like(src);
  const std::int64_t count = indices.numel();
  const Tensor numbers = reshape(arange(z.graph(), 0, static_cast<double>(count)), indices.shape()),
               last = index_assign(full(z.graph(), {size}, -1, i64), 0, indices, numbers),
               inside = maximum(indices, 0);
  Shape shape = indices.shape();
  for (int a = static_cast<int>(axis) + 1; a < z.shape().size(); ++a) shape.push_back(1);
  return where(reshape(equal(index_select(last, 0, inside), numbers), shape), index_select(z, axis, inside),
               0);
}

std::vector<Sample> assign_samples() {
  using detail::sample_indices;
  std::vector<Sample> all = detail::samples_by_index(index_assign);
  const Sample some{"some of them", {{{5, 4}}, sample_indices({4}, 6), {{4, 4}}}, [](auto x) {
                      return index_assign(x[0], 0, x[1] - 1, x[2]);
                    }};
  all.insert(all.begin() + 1, some);
  all.push_back({"list",
                 {{{5, 4}}, sample_indices({3}, 6), {{3, 4}}, {{5, 2, 3}}, {{3, 2, 3}}, {{5}}, {{3}}},
                 [](auto x) {
                   return index_assign_each({x[0], x[3], x[5]}, 0, x[1] - 1, {x[2], x[4], x[6]});
                 }});
  return all;
}

}  // namespace

const Op& index_assign_op =
    *define_op({.name = "index_assign",
                .doc = "x, src, …, indices → y, …: y = x, then y[a, indices[i], c] = src[a, i, c], for a "
                       "list of tensors. Index −1 skips a slice. If indices repeat, the last is used",
                .infer = infer_assign,
                .vjp = [](const Backprop& g) -> Tensors {
                  const std::int64_t axis = g.attrs.as<AxisAttrs>().axis;
                  const Tensor& indices = g.in.back();
                  Tensors grads(g.in.size());
                  for (std::size_t i = 0; i < g.z.size(); ++i) {
                    if (!g.z[i].defined()) continue;  // this result has no gradient
                    const Tensor& src = g.in[2 * i + 1];
                    if (g.needed[2 * i]) grads[2 * i] = index_assign(g.z[i], axis, indices, zeros_like(src));
                    if (g.needed[2 * i + 1]) grads[2 * i + 1] = source_gradient(src, indices, g.z[i], axis);
                  }
                  return grads;
                },
                .samples = assign_samples,
                .assigns = true,
                .inplace = {{0, 0}},
                .each = {1, 2}});

Tensor index_assign(TensorArg x, std::int64_t axis, TensorArg indices, TensorArg src) {
  return record(index_assign_op, {x, src, indices}, AxisAttrs{detail::axis_of(x, axis, "index_assign")});
}

std::vector<Tensor> index_assign_each(const std::vector<Tensor>& xs, std::int64_t axis, TensorArg indices,
                                      const std::vector<Tensor>& srcs) {
  if (xs.empty() || xs.size() != srcs.size())
    throw ShapeError(in_context("[index_assign] got " + std::to_string(xs.size()) + " tensors and " +
                                    std::to_string(srcs.size()) +
                                    " to assign, expected the same number of each, at least one",
                                indices.where()));
  Tensors in;
  for (std::size_t i = 0; i < xs.size(); ++i) in.insert(in.end(), {xs[i], srcs[i]});
  in.push_back(indices.tensor());
  const TensorArg first(xs[0], indices.where());
  return first.tensor().graph().record(
      index_assign_op, in, AxisAttrs{detail::axis_of(first, axis, "index_assign")}, indices.where());
}

}  // namespace tg
