// full returns a tensor filled with one number. If possible, kernels use the number instead of reading the
// tensor.
#include "ops/common.h"

namespace tg {

const Op& full_op = *define_op({.name = "full",
                                .doc = "→ y: every element is `value`",
                                .infer =
                                    [](std::span<const Operand>, const Attrs& a) {
                                      const auto& f = a.as<FullAttrs>();
                                      return detail::row_major_output(f.dtype, f.shape);
                                    },
                                .not_differentiable = "it has no inputs",
                                .samples = []() -> std::vector<Sample> {
                                  return {{"like", {{{3, 4}}}, [](auto x) { return full_like(x[0], 1); }}};
                                },
                                .recompute = Recompute::cheap});

Tensor full_like(TensorArg x, double value) {
  return full(x.tensor().graph(), x.tensor().shape(), value, x.tensor().dtype(), x.where());
}
Tensor zeros_like(TensorArg x) {
  return full_like(x, 0);
}
Tensor ones_like(TensorArg x) {
  return full_like(x, 1);
}

}  // namespace tg
