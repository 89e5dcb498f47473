// top_k: the k largest elements along an axis in descending order, and their indices.
#include "ops/common.h"
#include "ops/index.h"

namespace tg {

const Op& top_k_op =
    *define_op({.name = "top_k",
                .doc = "x → values, indices: the k largest along an axis in descending order, and their "
                       "indices (i64). NaN counts as largest",
                .infer =
                    [](std::span<const Operand> in, const Attrs& attrs) {
                      detail::require_operands(in, 1);
                      const auto& a = attrs.as<TopKAttrs>();
                      Shape shape = in[0].shape();
                      const int axis = static_cast<int>(a.axis);
                      if (a.k < 0 || a.k > shape[axis])
                        throw ShapeError("k is " + std::to_string(a.k) + ", expected 0 to " +
                                         std::to_string(shape[axis]));
                      shape[axis] = a.k;
                      return std::vector<OutSpec>{{in[0].dtype, row_major(shape)}, {i64, row_major(shape)}};
                    },
                .vjp = [](const Backprop& g) -> Tensors {
                  if (!g.z[0].defined()) return {Tensor()};
                  return {scatter_add(zeros_like(g.in[0]), g.attrs.as<TopKAttrs>().axis, g.out[1], g.z[0])};
                },
                .samples = []() -> std::vector<Sample> {
                  const Fill distinct{Fill::distinct, -2, 2};
                  return {{"last", {{{3, 7}, distinct}}, [](auto x) { return top_k(x[0], 3); }},
                          {"rows", {{{5, 4}, distinct}}, [](auto x) { return top_k(x[0], 2, 0); }},
                          {"all", {{{2, 4}, distinct}}, [](auto x) { return top_k(x[0], 4); }},
                          // Among equal elements, the first ones are selected.
                          {"ties",
                           {{.shape = {2, 4}, .values = {1, 3, 3, 2, 2, 2, 2, 2}}},
                           [](auto x) { return top_k(x[0], 2); },
                           Sample::Expected{{{3, 3, 2, 2}}, {{0, 1, 1, 0, 1, 1, 0, 0}}}}};
                },
                .cost = detail::flops_each<4>});

std::vector<Tensor> top_k(TensorArg x, std::int64_t k, std::int64_t axis) {
  return record_all(top_k_op, {x}, TopKAttrs{detail::axis_of(x, axis, "top_k"), k});
}

}  // namespace tg
