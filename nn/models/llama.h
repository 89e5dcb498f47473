// The Llama architecture with Hugging Face's parameter names: rotary positions, RMSNorm, grouped-query
// attention, gated MLPs. Related models (Qwen, Mistral, OLMo, Gemma, …) are settings of it.
#pragma once

#include <tilegrad/nn/models/rotary_stack.h>

namespace tg::nn {

// The settings of Llama and related models.
struct Llama {
  // See Architecture.
  static constexpr const char *name = "llama", *title = "Llama";
  std::int64_t key_heads = 0;  // number of key and value heads; 0: heads
  std::int64_t mlp_width = 0;  // hidden size of the MLPs; 0: swiglu_width
  double theta = 10000;        // base of the rotary frequencies

  std::int64_t head_width = 0;      // head size of queries, keys and values; 0: width / heads
  double eps = 1e-6;                // of the norms
  bool attention_bias = false;      // in q_proj, k_proj, v_proj and o_proj, if ModelConfig::bias is false
  bool qkv_bias = false;            // in q_proj, k_proj and v_proj (Qwen 2)
  bool mlp_bias = false;            // in the MLPs
  std::string activation = "silu";  // of the MLPs: activation_named
  // Normalization of queries and keys: "none", "head" (Qwen 3) or "whole" (OLMo 2).
  std::string qk_norm = "none";
  // Position of the branches' norms: "before", "after" (OLMo 2) or "both" (Gemma).
  std::string norms = "before";
  bool plus_one = false;         // gains are 1 + weight (Gemma)
  double embedding_scale = 1;    // factor of embedded tokens (Gemma: √width)
  double attention_scale = 0;    // factor of scores; 0: 1/√head_width
  double attention_softcap = 0;  // limit of scores; 0: none
  double logit_softcap = 0;      // limit of logits; 0: none
  // Number of keys that a query sees; 0: all. Layer i uses element i modulo the size. Empty: all keys in
  // every layer.
  std::vector<std::int64_t> windows = {};
  // Number of leading elements of each head that are rotated; 0: all (Phi 4: 96).
  std::int64_t rotary_width = 0;
  // Whether a layer has rotary positions: 1 or 0. Layer i uses element i modulo the size. Empty: all layers
  // have them.
  std::vector<std::int64_t> rotated = {};
  double window_theta = 0;   // theta of layers with a window, without scaling; 0: as in other layers
  RopeScaling scaling = {};  // of the rotary frequencies

  // Calls field(name, member, setting) for each setting; see settings_of.
  void fields(auto&& field) {
    field("key_heads", key_heads,
          Setting{.help = "heads of keys and values, each shared by a group of heads",
                  .min = 0,
                  .max = 4096,
                  .shown = "0: --heads",
                  .after = "heads"});
    field("mlp_width", mlp_width, mlp_width_setting());
    field("theta", theta, theta_setting());
    field("head_width", head_width, Setting{.absent = "0"});
    field("eps", eps, Setting{.absent = "1e-06"});
    field("attention_bias", attention_bias, Setting{.absent = "false"});
    field("qkv_bias", qkv_bias, Setting{.absent = "false"});
    field("mlp_bias", mlp_bias, Setting{.absent = "false"});
    field("activation", activation, Setting{.absent = "silu"});
    field("qk_norm", qk_norm, Setting{.absent = "none"});
    field("norms", norms, Setting{.absent = "before"});
    field("plus_one", plus_one, Setting{.absent = "false"});
    field("embedding_scale", embedding_scale, Setting{.absent = "1"});
    field("attention_scale", attention_scale, Setting{.absent = "0"});
    field("attention_softcap", attention_softcap, Setting{.absent = "0"});
    field("logit_softcap", logit_softcap, Setting{.absent = "0"});
    field("windows", windows, Setting{.absent = ""});
    field("rotary_width", rotary_width, Setting{.absent = "0"});
    field("rotated", rotated, Setting{.absent = ""});
    field("window_theta", window_theta, Setting{.absent = "0"});
    scaling.fields(field);
  }
  // Sets key_heads to heads and mlp_width to swiglu_width if they are 0.
  void complete(const ModelConfig& c);
  // Throws ShapeError for invalid sizes and Error for other invalid settings.
  void check(const ModelConfig& c) const;
  // Returns the number of key heads if it differs from the number of heads.
  std::string text(const ModelConfig& c) const;
  // Creates the layers of a model on `at`.
  ModelParts make(const Path& at, const ModelConfig& c) const;

 private:
  RotaryStack stack() const;
};

}  // namespace tg::nn
