// The common structure of Llama and its descendants: rotary positions, RMSNorm and gated MLPs with Hugging
// Face's parameter names. The attention layer is a parameter.
#pragma once

#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::nn {

// How a model's rotary frequencies ω_i = theta^(−2i/d) were changed after its first training, for longer
// sequences. Formulas and type names are from Hugging Face's config.json.
struct RopeScaling {
  // One of:
  // - "none";
  // - "linear": ω / factor;
  // - "llama3" (Llama 3.1): with λ = 2π/ω and the first context C, the frequency is ω if λ <
  //   C/high_frequency, and ω / factor if λ > C/low_frequency. In between, it is a mixture of the two;
  // - "yarn" [Peng et al., 2023]: a mixture of ω and ω / factor. The weight changes linearly with i, between
  //   the pair that rotates beta_fast times in C and the pair that rotates beta_slow times;
  // - "longrope" [Ding et al., 2024] (Phi 3): ω_i / long_factors[i] for sequences of more than C tokens,
  //   otherwise ω_i / short_factors[i]. A cache stores rotated keys. With a cache, the factors therefore
  //   depend on the model's context length instead.
  std::string type = "none";
  double factor = 1;                             // for longrope, only `magnitude` depends on it
  double first_context = 0;                      // C, in tokens: for llama3, yarn and longrope
  double low_frequency = 1, high_frequency = 4;  // for llama3, in rotations per C
  double beta_fast = 32, beta_slow = 1;          // for yarn, in rotations per C
  bool whole_pairs = true;                       // for yarn: the mixture begins and ends at whole numbers i
  std::vector<double> short_factors = {}, long_factors = {};  // for longrope, one per rotary pair
  double magnitude = 1;  // for yarn and longrope: factor of sine and cosine

  // Whether the frequencies are unchanged.
  bool is_none() const { return type == "none"; }
  // Throws Error for an unknown type, and for values that the formulas cannot use.
  void check() const;
  // As above, and throws ShapeError unless the number of factors is d/2.
  void check(std::int64_t d) const;
  // Returns the d/2 frequencies of a model for sequences of up to `context` tokens.
  std::vector<double> frequencies(std::int64_t d, double theta, std::int64_t context) const;
  // Returns C for longrope if `context` is longer than C, otherwise 0. If a call without a cache has at most
  // this number of tokens, its frequencies differ from the frequencies for `context` tokens.
  std::int64_t short_length(std::int64_t context) const;

  // Calls field(name, member, setting) for each setting; see settings_of.
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

// Returns 8/3 of the width, rounded up to a multiple of 8. A gated MLP then has about as many parameters as
// GPT's MLP.
std::int64_t swiglu_width(std::int64_t width);

// The position of the norms in a block's branches x + f(x), with their parameter names.
enum class NormPosition {
  before,  // x + f(norm(x)): "input_layernorm", "post_attention_layernorm" (Llama)
  after,   // x + norm(f(x)): "post_attention_layernorm", "post_feedforward_layernorm" (OLMo 2)
  both     // x + norm(f(norm(x))): the three, and "pre_feedforward_layernorm" (Gemma 2)
};

// The common settings of such models.
struct RotaryStack {
  std::int64_t mlp_width = 0;                 // hidden size of the MLPs; 0: swiglu_width
  bool mlp_bias = false;                      // in the MLPs, if ModelConfig::bias is false
  Activation activation = Activation::silu;   // of the MLPs
  double eps = 1e-6;                          // of the norms
  NormPosition norms = NormPosition::before;  // position of the norms
  bool plus_one = false;                      // gains of the norms are 1 + weight, as in RmsNorm
  double embedding_scale = 1;                 // factor of the embedded tokens
  double softcap = 0;                         // limits logits to c·tanh(logit / c); 0: no limit

  // Creates the layers: model.embed_tokens, model.layers.0 with its norms, self_attn and mlp, …, model.norm,
  // and lm_head unless it is tied. `attention` creates the attention layer of block `layer`.
  ModelParts make(const Path& at, const ModelConfig& c,
                  const std::function<Layer(const Path& at, std::int64_t layer)>& attention) const;
  // Throws ShapeError for a width that is not positive, and Error for other invalid values.
  void check(const ModelConfig& c) const;
};

// Throws ShapeError unless head_width allows rotary pairs (even and positive), and Error for a theta that is
// not positive.
void check_rotary(std::int64_t head_width, double theta);

// Returns the setting "mlp_width" for gated MLPs.
Setting mlp_width_setting();
// Returns the setting "theta".
Setting theta_setting();

}  // namespace tg::nn
