#include <tilegrad/nn/layers/mlp.h>

#include <string>

#include <tilegrad/ops/ops.h>

namespace tg::nn {

namespace {

Tensor activated(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::gelu_tanh:
      return gelu_tanh(x);
    case Activation::silu:
      return silu(x);
    case Activation::gelu:
      break;
  }
  return gelu(x);
}

// Files have named it only since there is more than one.
void keep_activation(const Path& at, const Linear& layer, Activation activation, Activation usual) {
  if (activation != usual) at.setting(layer.weight(), "activation", static_cast<std::int64_t>(activation));
}

}  // namespace

Activation activation_named(std::string_view name) {
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_tanh") return Activation::gelu_tanh;
  if (name == "silu") return Activation::silu;
  throw Error("[activation] got '" + std::string(name) + "', expected gelu, gelu_tanh or silu");
}

Mlp::Mlp(const Path& at, std::int64_t width, Options o)
    : Mlp(at, width, o, o.inner == 0 ? detail::product(4, width) : o.inner) {}

Mlp::Mlp(const Path& at, std::int64_t width, const Options& o, std::int64_t inner)
    : Module(at),
      c_fc_(at / "c_fc", width, inner, {.bias = o.bias, .init = o.init}),
      c_proj_(at / "c_proj", inner, width, {.bias = o.bias, .init = o.output_init}),
      activation_(o.activation) {
  keep_activation(at, c_fc_, activation_, Activation::gelu);
}

Tensor Mlp::record(TensorArg x, const Call& call) const {
  return c_proj_(activated(c_fc_(x, {.mode = call.mode}), activation_),
                 {.mode = call.mode, .residual = call.residual});
}

GatedMlp::GatedMlp(const Path& at, std::int64_t width, std::int64_t inner, Options o)
    : Module(at),
      gate_proj_(at / "gate_proj", width, inner, {.bias = o.bias, .init = o.init}),
      up_proj_(at / "up_proj", width, inner, {.bias = o.bias, .init = o.init}),
      down_proj_(at / "down_proj", inner, width, {.bias = o.bias, .init = o.output_init}),
      activation_(o.activation) {
  keep_activation(at, gate_proj_, activation_, Activation::silu);
}

Tensor GatedMlp::record(TensorArg x, const Call& call) const {
  const Call same{.mode = call.mode};
  const Tensor gate = gate_proj_(x, same), up = up_proj_(x, same);
  const Tensor inner = activation_ == Activation::silu ? swiglu(gate, up) : activated(gate, activation_) * up;
  return down_proj_(inner, {.mode = call.mode, .residual = call.residual});
}

}  // namespace tg::nn
