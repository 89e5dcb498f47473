// What a block does at each position by itself: GPT-2's GELU MLP and Llama's SwiGLU.
#pragma once

#include <tilegrad/nn/layers/layers.h>

namespace tg::nn {

// c_proj(gelu(c_fc(x))), four times as wide inside; gelu by erf.
class Mlp {
 public:
  struct Options {
    bool bias = true;
    Init init = Init::gpt2(), output_init = Init::gpt2();  // of c_fc and c_proj
  };
  Mlp(const Path& at, std::int64_t width, Options options);
  Mlp(const Path& at, std::int64_t width) : Mlp(at, width, Options{}) {}

  Tensor operator()(TensorArg x,
                    TensorArg residual = {}) const;  // [..., width], added to a residual when one is given

 private:
  std::string name_;
  Linear c_fc_, c_proj_;
};

// down_proj(silu(gate_proj(x)) ⊛ up_proj(x)), `inner` wide inside (Shazeer, 2020).
class GatedMlp {
 public:
  struct Options {
    bool bias = false;
    Init init = Init::gpt2(), output_init = Init::gpt2();  // of gate_proj and up_proj, and of down_proj
  };
  GatedMlp(const Path& at, std::int64_t width, std::int64_t inner, Options options);
  GatedMlp(const Path& at, std::int64_t width, std::int64_t inner) : GatedMlp(at, width, inner, Options{}) {}

  Tensor operator()(TensorArg x, TensorArg residual = {}) const;  // as Mlp's

 private:
  std::string name_;
  Linear gate_proj_, up_proj_, down_proj_;
};

}  // namespace tg::nn
