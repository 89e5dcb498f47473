// View ops: the same memory with a different layout [Stratos, FlashAttention §B.3]. They need no kernel and
// no memory. The gradient is the inverse view.
#include "ops/common.h"

namespace tg {

struct PermuteAttrs {
  Axes order;
  void fields(auto&& field) const { field("order", order); }
};
struct ShapeAttrs {
  Shape shape;
  void fields(auto&& field) const { field("shape", shape); }
};

namespace {

// The shape rule of a view. f computes the new layout from the layout of the operand.
template <Layout (*f)(const Layout&, const Attrs&)>
std::vector<OutSpec> looks_into(std::span<const Operand> in, const Attrs& a) {
  detail::require_operands(in, 1);
  return {{in[0].dtype, f(in[0].layout, a), 0}};
}

std::vector<Sample> permute_samples() {
  const auto rotated = [](std::span<const Tensor> x) { return permute(x[0], {2, 0, 1}); };
  return {{"rotate", {{{2, 3, 4}}}, rotated},
          {"transpose", {{{3, 4}}}, [](auto x) { return transpose(x[0], 0, 1); }}};
}

std::vector<Sample> view_samples() {
  const auto split = [](std::span<const Tensor> x) { return reshape(x[0], {2, 3, -1}); };
  return {{"split", {{{6, 4}}}, split}, {"merge", {{{2, 3, 4}}}, [](auto x) { return reshape(x[0], {-1}); }}};
}

}  // namespace

const Op& permute_op = *define_op(
    {.name = "permute",
     .doc = "x → y: y[i₀, i₁, …] = x with its axes in the given order",
     .infer =
         looks_into<[](const Layout& l, const Attrs& a) { return permute(l, a.as<PermuteAttrs>().order); }>,
     .vjp = [](const Backprop& g) -> Tensors {
       const Axes& order = g.attrs.as<PermuteAttrs>().order;
       Axes inverse = order;
       for (int i = 0; i < order.size(); ++i) inverse[normalize_axis(order[i], order.size(), "permute")] = i;
       return {permute(g.z[0], inverse)};
     },
     .samples = permute_samples,
     .view = true});

const Op& view_op = *define_op(
    {.name = "view",
     .doc = "x → y: x with a new shape and the same elements, if its strides allow that without a copy",
     .infer = looks_into<[](const Layout& l, const Attrs& a) { return view(l, a.as<ShapeAttrs>().shape); }>,
     .vjp = [](const Backprop& g) -> Tensors { return {reshape(g.z[0], g.in[0].shape())}; },
     .samples = view_samples,
     .view = true});

const Op& expand_op = *define_op(
    {.name = "expand",
     .doc = "x → y: x repeated along new axes and axes of size 1, with stride 0",
     .infer = looks_into<[](const Layout& l, const Attrs& a) { return expand(l, a.as<ShapeAttrs>().shape); }>,
     .vjp = [](const Backprop& g) -> Tensors { return {sum_to(g.z[0], g.in[0].shape())}; },
     .samples = []() -> std::vector<Sample> {
       return {{"stretch", {{{3, 1}}}, [](auto x) { return expand(x[0], {2, 3, 4}); }}};
     },
     .view = true});

Tensor permute(TensorArg x, const Axes& order) {
  return record(permute_op, {x}, PermuteAttrs{order});
}

Tensor transpose(TensorArg x, std::int64_t a, std::int64_t b) {
  Axes order;
  for (int i = 0; i < x.tensor().rank(); ++i) order.push_back(i);
  std::swap(order[static_cast<int>(detail::axis_of(x, a, "transpose"))],
            order[static_cast<int>(detail::axis_of(x, b, "transpose"))]);
  return permute(x, order);
}

Tensor view(TensorArg x, const Shape& shape) {
  return record(view_op, {x}, ShapeAttrs{shape});
}

Tensor reshape(TensorArg x, const Shape& shape) {
  const Scope scope(x);
  const Shape target = detail::at_call(x, [&] { return infer_shape(shape, x.tensor().numel(), "reshape"); });
  return view(can_view(x.tensor().layout(), target) ? x.tensor() : contiguous(x), target);
}

Tensor expand(TensorArg x, const Shape& shape) {
  return record(expand_op, {x}, ShapeAttrs{shape});
}

Tensor squeeze(TensorArg x, std::int64_t axis) {
  return view(x, detail::at_call(x, [&] { return squeeze(x.tensor().layout(), axis).shape; }));
}

Tensor unsqueeze(TensorArg x, std::int64_t axis) {
  return view(x, detail::at_call(x, [&] { return unsqueeze(x.tensor().layout(), axis).shape; }));
}

// The methods of Tensor pass on the source line of the caller.
Tensor Tensor::transpose(std::int64_t a, std::int64_t b, Where at) const {
  return tg::transpose({*this, at}, a, b);
}
Tensor Tensor::permute(const Axes& order, Where at) const {
  return tg::permute({*this, at}, order);
}
Tensor Tensor::view(const Shape& s, Where at) const {
  return tg::view({*this, at}, s);
}
Tensor Tensor::expand(const Shape& s, Where at) const {
  return tg::expand({*this, at}, s);
}
Tensor Tensor::slice(std::int64_t axis, std::int64_t start, std::int64_t stop, std::int64_t step,
                     Where at) const {
  return tg::slice({*this, at}, axis, start, stop, step);
}
Tensor Tensor::squeeze(std::int64_t axis, Where at) const {
  return tg::squeeze({*this, at}, axis);
}
Tensor Tensor::unsqueeze(std::int64_t axis, Where at) const {
  return tg::unsqueeze({*this, at}, axis);
}
Tensor Tensor::reshape(const Shape& s, Where at) const {
  return tg::reshape({*this, at}, s);
}
Tensor Tensor::contiguous(Where at) const {
  return tg::contiguous({*this, at});
}
Tensor Tensor::to(DType dtype, Where at) const {
  return tg::cast({*this, at}, dtype);
}

}  // namespace tg
