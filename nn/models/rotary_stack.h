// What Llama and its descendants have in common: rotary positions, RMSNorm and gated MLPs under Hugging
// Face's names, around an attention of their own.
#pragma once

#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::nn {

// How a model's rotary frequencies ω_i = theta^(−2i/d) were changed for longer texts than those it was first
// trained on. Formulas and names of types as in Hugging Face's config.json.
struct RopeScaling {
  // "none";
  // "linear": ω / factor;
  // "llama3" (Llama 3.1): with λ = 2π/ω and the first context C, ω if λ < C/high_frequency, ω / factor if
  //   λ > C/low_frequency, and in between a mixture of the two;
  // "yarn" [Peng et al., 2023]: a mixture of ω and ω / factor, linear in i between the pairs that rotate
  //   beta_fast and beta_slow times in C;
  // "longrope" [Ding et al., 2024] (Phi 3): ω_i / long_factors[i] for sequences of more than C tokens, ω_i /
  //   short_factors[i] for others. A cache keeps rotated keys, so with one the model's context counts as the
  //   length.
  std::string type = "none";
  double factor = 1;                             // not of longrope, where only `magnitude` depends on it
  double first_context = 0;                      // C, in tokens: of llama3, yarn and longrope
  double low_frequency = 1, high_frequency = 4;  // of llama3, in rotations per C
  double beta_fast = 32, beta_slow = 1;          // of yarn, in rotations per C
  bool whole_pairs = true;                       // of yarn: the mixture begins and ends at whole numbers i
  std::vector<double> short_factors = {}, long_factors = {};  // of longrope, one per pair
  double magnitude = 1;  // of yarn and longrope: sine and cosine are multiplied by it

  bool is_none() const { return type == "none"; }
  void check() const;  // throws Error for an unknown type, and for numbers that the formulas cannot use
  // The same, and ShapeError for factors that are not those of d/2 pairs.
  void check(std::int64_t d) const;
  // Of a model whose texts have up to `context` tokens: d/2 of them.
  std::vector<double> frequencies(std::int64_t d, double theta, std::int64_t context) const;
  // The most tokens in a call without a cache that has other frequencies than the model's context: C of
  // longrope in a model for longer texts; else 0.
  std::int64_t short_length(std::int64_t context) const;

  void fields(auto&& field) {
    field("rope_type", type, Setting{.absent = "none"});
    field("rope_factor", factor, Setting{.absent = "1"});
    field("rope_first_context", first_context, Setting{.absent = "0"});
    field("rope_low_frequency", low_frequency, Setting{.absent = "1"});
    field("rope_high_frequency", high_frequency, Setting{.absent = "4"});
    field("rope_beta_fast", beta_fast, Setting{.absent = "32"});
    field("rope_beta_slow", beta_slow, Setting{.absent = "1"});
    field("rope_whole_pairs", whole_pairs, Setting{.absent = "true"});
    field("rope_short_factors", short_factors, Setting{.absent = ""});
    field("rope_long_factors", long_factors, Setting{.absent = ""});
    field("rope_magnitude", magnitude, Setting{.absent = "1"});
  }
};

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
