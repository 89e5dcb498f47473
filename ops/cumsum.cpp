// cumsum: running sums along an axis, from its start or from its end. The gradient runs in the opposite
// direction: y_i = Σ_{j ≤ i} x_j, so z_x,j = Σ_{i ≥ j} z_i.
#include "ops/common.h"
#include "ops/index.h"

namespace tg {

const Op& cumsum_op = *define_op(
    {.name = "cumsum",
     .doc = "x → y: yᵢ = Σ xⱼ over j ≤ i along an axis (reverse: j ≥ i); floats are summed in f64 and "
            "rounded once: |error| ≤ u·|yᵢ| + i·2⁻⁵³·Σ|xⱼ| with the unit roundoff u of the dtype",
     .infer =
         [](std::span<const Operand> in, const Attrs& a) {
           detail::require_operands(in, 1);
           a.as<CumsumAttrs>();
           if (in[0].dtype == boolean) throw DTypeError("needs numbers, not booleans");
           return detail::row_major_output(in[0].dtype, in[0].shape());
         },
     .vjp = [](const Backprop& g) -> Tensors {
       const auto& a = g.attrs.as<CumsumAttrs>();
       return {cumsum(g.z[0], a.axis, !a.reverse)};
     },
     .samples = []() -> std::vector<Sample> {
       return {{"last", {{{3, 5}}}, [](auto x) { return cumsum(x[0], -1); }},
               {"middle", {{{2, 4, 3}}}, [](auto x) { return cumsum(x[0], 1); }},
               {"reverse", {{{3, 5}}}, [](auto x) { return cumsum(x[0], 0, true); }}};
     },
     .roundings =
         [](std::span<const Operand> in, std::span<const Operand>, const Attrs& a) {
           return static_cast<double>(in[0].shape()[static_cast<int>(a.as<CumsumAttrs>().axis)]);
         },
     .inplace = {{0, 0}}});

Tensor cumsum(TensorArg x, std::int64_t axis, bool reverse) {
  return record(cumsum_op, {x}, CumsumAttrs{detail::axis_of(x, axis, "cumsum"), reverse});
}

}  // namespace tg
