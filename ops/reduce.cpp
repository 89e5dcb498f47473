// Reductions over any axes.
#include "ops/reduce.h"

#include "ops/common.h"

namespace tg {

namespace {

Shape reduced(const Shape& shape, const Axes& axes, bool keepdim) {
  Shape out;
  for (int i = 0; i < shape.size(); ++i) {
    if (!axes.contains(i))
      out.push_back(shape[i]);
    else if (keepdim)
      out.push_back(1);
  }
  return out;
}

// z with its reduced axes back, as a view of the input's shape.
Tensor stretched(const Tensor& z, const Tensor& x, const ReduceAttrs& a) {
  return expand(a.keepdim ? z : reshape(z, reduced(x.shape(), a.axes, true)), x.shape());
}

}  // namespace

const Op sum_op{.name = "sum",
                .infer =
                    [](std::span<const Operand> in, const Attrs& a) {
                      const auto& r = a.as<ReduceAttrs>();
                      return detail::row_major_output(in[0].dtype, reduced(in[0].shape(), r.axes, r.keepdim));
                    },
                .vjp = [](const Backprop& g) -> Tensors {
                  return {stretched(g.z[0], g.in[0], g.attrs.as<ReduceAttrs>())};
                },
                .samples = []() -> std::vector<Sample> {
                  return {{"all", {{{3, 4}}}, [](auto x) { return Tensors{sum(x[0])}; }},
                          {"middle", {{{2, 3, 4}}}, [](auto x) { return Tensors{sum(x[0], {1}, true)}; }},
                          {"outer and inner", {{{2, 3, 4}}}, [](auto x) {
                             return Tensors{sum(x[0], {0, 2})};
                           }}};
                }};

Tensor sum(In x, const Axes& axes, bool keepdim) {
  return record(sum_op, {x}, ReduceAttrs{normalize_axes(axes, x.tensor().rank(), "sum"), keepdim});
}

Tensor sum_to(In x, const Shape& shape) {
  const Scope scope(x);
  const Shape& from = x.tensor().shape();
  const int extra = from.size() - shape.size();
  Axes axes;
  for (int i = 0; i < from.size(); ++i)
    if (i < extra || (shape[i - extra] == 1 && from[i] != 1)) axes.push_back(i);
  return axes.empty() ? x.tensor() : reshape(sum(x, axes, true), shape);
}

Tensor Tensor::sum(const Axes& axes, bool keepdim, std::source_location at) const {
  return tg::sum({*this, at}, axes, keepdim);
}

}  // namespace tg
