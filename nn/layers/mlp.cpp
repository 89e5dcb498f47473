#include <tilegrad/nn/layers/mlp.h>

#include <tilegrad/ops/ops.h>

namespace tg::nn {

Mlp::Mlp(const Path& at, std::int64_t width, Options o)
    : Module(at),
      c_fc_(at / "c_fc", width, detail::product(4, width), {.bias = o.bias, .init = o.init}),
      c_proj_(at / "c_proj", 4 * width, width, {.bias = o.bias, .init = o.output_init}) {}

Tensor Mlp::record(TensorArg x, const Call& call) const {
  return c_proj_(gelu(c_fc_(x)), {.residual = call.residual});
}

GatedMlp::GatedMlp(const Path& at, std::int64_t width, std::int64_t inner, Options o)
    : Module(at),
      gate_proj_(at / "gate_proj", width, inner, {.bias = o.bias, .init = o.init}),
      up_proj_(at / "up_proj", width, inner, {.bias = o.bias, .init = o.init}),
      down_proj_(at / "down_proj", inner, width, {.bias = o.bias, .init = o.output_init}) {}

Tensor GatedMlp::record(TensorArg x, const Call& call) const {
  return down_proj_(swiglu(gate_proj_(x), up_proj_(x)), {.residual = call.residual});
}

}  // namespace tg::nn
