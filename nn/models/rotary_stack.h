// What Llama and its descendants have in common: rotary positions, RMSNorm and gated MLPs under Hugging
// Face's names, around an attention of their own.
#pragma once

#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::nn {

// 8/3 of the width, rounded up to a multiple of 8: about as many parameters as GPT's MLP.
std::int64_t swiglu_width(std::int64_t width);

// The norms of a block's branches x + f(x).
enum class NormPlace {
  before,  // x + f(norm(x)): "input_layernorm", "post_attention_layernorm" (Llama)
  after,   // x + norm(f(x)): "post_attention_layernorm", "post_feedforward_layernorm" (OLMo 2)
  both     // x + norm(f(norm(x))): the three, and "pre_feedforward_layernorm" (Gemma 2)
};

struct RotaryStack {
  std::int64_t mlp_width = 0;  // inside the MLP; 0: swiglu_width
  bool mlp_bias = false;       // without ModelConfig::bias: in the MLP
  Activation activation = Activation::silu;
  double eps = 1e-6;  // of the norms
  NormPlace norms = NormPlace::before;
  bool plus_one = false;       // gains of the norms, as RmsNorm has it
  double embedding_scale = 1;  // of the embedded tokens, before the first block
  double softcap = 0;          // c·tanh(logit / c); 0: none

  // model.embed_tokens; model.layers.0 with its norms, self_attn and mlp; …; model.norm; lm_head unless it is
  // tied. `attention` makes the one of block `layer`.
  ModelParts make(const Path& at, const ModelConfig& c,
                  const std::function<Layer(const Path& at, std::int64_t layer)>& attention) const;
  // Throws ShapeError for a width that is not positive, Error for numbers that are not.
  void check(const ModelConfig& c) const;
};

// Throws ShapeError for heads of a width without rotary pairs, Error for a theta that is not positive.
void check_rotary(std::int64_t head_width, double theta);

Setting mlp_width_setting();
Setting theta_setting();

}  // namespace tg::nn
