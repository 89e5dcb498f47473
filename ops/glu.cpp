// Gated units, composed of pointwise ops that run as one fused step.
#include "ops/common.h"

namespace tg {

Tensor swiglu(TensorArg gate, TensorArg value) {
  const Scope scope(gate);
  return silu(gate) * value;
}

Tensor swiglu(TensorArg packed) {
  const Scope scope(packed);
  const Tensor& x = packed.tensor();
  if (x.rank() == 0 || x.size(-1) % 2 != 0)
    throw ShapeError(
        in_context("[swiglu] wants an even last axis: gates, then values; got " + x.text(), packed.where()));
  const std::int64_t n = x.size(-1) / 2;
  return swiglu(slice(x, -1, 0, n), slice(x, -1, n, 2 * n));
}

}  // namespace tg
