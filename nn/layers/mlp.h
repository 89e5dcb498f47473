// The layers that act on each position separately: GPT-2's GELU MLP and Llama's SwiGLU.
#pragma once

#include <string_view>

#include <tilegrad/nn/layers/layers.h>

namespace tg::nn {

enum class Activation {
  gelu,       // x·Φ(x), by erf
  gelu_tanh,  // its approximation by tanh
  silu,       // x·σ(x)
};
// By the names above. Throws Error for other names.
Activation activation_named(std::string_view name);

// x [..., width] → c_proj(activation(c_fc(x))) [..., width], `inner` wide inside.
class Mlp : public Module {
 public:
  struct Options {
    std::int64_t inner = 0;  // 0: four times the width
    Activation activation = Activation::gelu;
    bool bias = true;
    Init init = Init::gpt2(), output_init = Init::gpt2();  // of c_fc and c_proj
  };
  Mlp(const Path& at, std::int64_t width, Options options);
  Mlp(const Path& at, std::int64_t width) : Mlp(at, width, Options{}) {}

 private:
  Tensor record(TensorArg x, const Call& call) const override;
  bool adds_residual() const override { return true; }
  Mlp(const Path& at, std::int64_t width, const Options& options, std::int64_t inner);
  Linear c_fc_, c_proj_;
  Activation activation_;
};

// down_proj(activation(gate_proj(x)) ⊛ up_proj(x)), `inner` wide inside (Shazeer, 2020).
class GatedMlp : public Module {
 public:
  struct Options {
    Activation activation = Activation::silu;
    bool bias = false;
    Init init = Init::gpt2(), output_init = Init::gpt2();  // of gate_proj and up_proj, and of down_proj
  };
  GatedMlp(const Path& at, std::int64_t width, std::int64_t inner, Options options);
  GatedMlp(const Path& at, std::int64_t width, std::int64_t inner) : GatedMlp(at, width, inner, Options{}) {}

 private:
  Tensor record(TensorArg x, const Call& call) const override;
  bool adds_residual() const override { return true; }
  Linear gate_proj_, up_proj_, down_proj_;
  Activation activation_;
};

}  // namespace tg::nn
