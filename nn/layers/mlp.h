// The layers that act on each position separately: GPT-2's GELU MLP and Llama's SwiGLU.
#pragma once

#include <tilegrad/nn/layers/layers.h>

namespace tg::nn {

// x [..., width] → c_proj(gelu(c_fc(x))) [..., width], four times as wide inside; gelu by erf.
class Mlp : public Module {
 public:
  struct Options {
    bool bias = true;
    Init init = Init::gpt2(), output_init = Init::gpt2();  // of c_fc and c_proj
  };
  Mlp(const Path& at, std::int64_t width, Options options);
  Mlp(const Path& at, std::int64_t width) : Mlp(at, width, Options{}) {}

 private:
  Tensor record(TensorArg x, const Call& call) const override;
  bool adds_residual() const override { return true; }
  Linear c_fc_, c_proj_;
};

// down_proj(silu(gate_proj(x)) ⊛ up_proj(x)), `inner` wide inside (Shazeer, 2020).
class GatedMlp : public Module {
 public:
  struct Options {
    bool bias = false;
    Init init = Init::gpt2(), output_init = Init::gpt2();  // of gate_proj and up_proj, and of down_proj
  };
  GatedMlp(const Path& at, std::int64_t width, std::int64_t inner, Options options);
  GatedMlp(const Path& at, std::int64_t width, std::int64_t inner) : GatedMlp(at, width, inner, Options{}) {}

 private:
  Tensor record(TensorArg x, const Call& call) const override;
  bool adds_residual() const override { return true; }
  Linear gate_proj_, up_proj_, down_proj_;
};

}  // namespace tg::nn
