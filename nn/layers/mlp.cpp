#include <tilegrad/nn/layers/mlp.h>

#include <tilegrad/ops/ops.h>

namespace tg::nn {

Mlp::Mlp(const Path& at, std::int64_t width, Options o)
    : name_(at.name()),
      c_fc_(at / "c_fc", width, 4 * width, {.bias = o.bias, .init = o.init}),
      c_proj_(at / "c_proj", 4 * width, width, {.bias = o.bias, .init = o.output_init}) {}

Tensor Mlp::operator()(TensorArg x, TensorArg residual) const {
  const Scope scope(name_, x.where());
  return c_proj_(gelu(c_fc_(x)), residual);
}

GatedMlp::GatedMlp(const Path& at, std::int64_t width, std::int64_t inner, Options o)
    : name_(at.name()),
      gate_proj_(at / "gate_proj", width, inner, {.bias = o.bias, .init = o.init}),
      up_proj_(at / "up_proj", width, inner, {.bias = o.bias, .init = o.init}),
      down_proj_(at / "down_proj", inner, width, {.bias = o.bias, .init = o.output_init}) {}

Tensor GatedMlp::operator()(TensorArg x, TensorArg residual) const {
  const Scope scope(name_, x.where());
  return down_proj_(swiglu(gate_proj_(x), up_proj_(x)), residual);
}

}  // namespace tg::nn
