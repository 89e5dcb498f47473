// Ops that copy: to a different dtype, to separate memory, or to row-major order. Also the view that stops
// gradients.
#include "ops/common.h"

namespace tg {

namespace {
struct CastAttrs {
  DType dtype;
  void fields(auto&& field) const { field("dtype", dtype); }
};
}  // namespace

const Op& cast_op =
    *define_op({.name = "cast",
                .doc = "x → y: x converted to a dtype: floats are rounded to nearest even, integers towards "
                       "zero, bool is x ≠ 0",
                .infer =
                    [](std::span<const Operand> in, const Attrs& a) {
                      detail::require_operands(in, 1);
                      return detail::pointwise_output(in, a.as<CastAttrs>().dtype);
                    },
                .vjp = [](const Backprop& g) -> Tensors { return {cast(g.z[0], g.in[0].dtype())}; },
                .samples = []() -> std::vector<Sample> {
                  return {{"to f64", {{{3, 4}}}, [](auto x) { return cast(x[0], f64); }}};
                },
                .pointwise = true,
                .converts = true});

const Op& copy_op = *define_op({.name = "copy",
                                .doc = "x → y: a copy of x in separate memory",
                                .infer =
                                    [](std::span<const Operand> in, const Attrs&) {
                                      detail::require_operands(in, 1);
                                      return detail::pointwise_output(in, in[0].dtype);
                                    },
                                .vjp = [](const Backprop& g) -> Tensors { return {g.z[0]}; },
                                .samples = []() -> std::vector<Sample> {
                                  return {{"3d", {{{2, 3, 4}}}, [](auto x) { return copy(x[0]); }}};
                                },
                                .pointwise = true});

const Op& contiguous_op = *define_op(
    {.name = "contiguous",
     .doc = "x → y: x in row-major order",
     .infer =
         [](std::span<const Operand> in, const Attrs&) {
           detail::require_operands(in, 1);
           return detail::row_major_output(in[0].dtype, in[0].shape());
         },
     .vjp = [](const Backprop& g) -> Tensors { return {g.z[0]}; },
     .samples = []() -> std::vector<Sample> {
       return {{"transposed", {{{3, 4}}}, [](auto x) { return contiguous(transpose(x[0], 0, 1)); }}};
     },
     .pointwise = true,
     .recompute = Recompute::cheap,
     .join_axis = [](const Attrs&) { return 0; }});

const Op& stop_gradient_op = *define_op(
    {.name = "stop_gradient",
     .doc = "x → y: x, but no gradient passes through",
     .infer =
         [](std::span<const Operand> in, const Attrs&) {
           detail::require_operands(in, 1);
           return std::vector<OutSpec>{{in[0].dtype, in[0].layout, 0}};
         },
     .vjp = [](const Backprop&) -> Tensors { return {Tensor()}; },
     .samples = []() -> std::vector<Sample> {
       return {{"times zero", {{{3, 4}}}, [](auto x) { return x[0] * 2 + 0 * stop_gradient(x[0]); }}};
     },
     .stops_gradient = true,
     .view = true});

Tensor cast(TensorArg x, DType dtype) {
  return x.tensor().dtype() == dtype ? x.tensor() : record(cast_op, {x}, CastAttrs{dtype});
}
Tensor copy(TensorArg x) {
  return record(copy_op, {x});
}
Tensor contiguous(TensorArg x) {
  return x.tensor().layout().is_contiguous() ? x.tensor() : record(contiguous_op, {x});
}
Tensor stop_gradient(TensorArg x) {
  return record(stop_gradient_op, {x});
}

}  // namespace tg
