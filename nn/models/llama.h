// Llama and its relatives under Hugging Face's names: rotary positions, RMSNorm, grouped-query attention,
// gated MLPs. The relatives (Qwen, Mistral, OLMo, Gemma, …) are settings of it.
#pragma once

#include <tilegrad/nn/models/rotary_stack.h>

namespace tg::nn {

struct Llama {
  static constexpr const char *name = "llama", *title = "Llama";
  std::int64_t key_heads = 0;  // 0: heads
  std::int64_t mlp_width = 0;  // inside the MLP; 0: swiglu_width
  double theta = 10000;        // of rotary positions

  // Where models of other families differ from Llama.
  std::int64_t head_width = 0;             // of queries, keys and values; 0: width / heads
  double eps = 1e-6;                       // of the norms
  bool attention_bias = false;             // without ModelConfig::bias: in q_proj, k_proj, v_proj and o_proj
  bool qkv_bias = false;                   // in the first three of them (Qwen 2)
  bool mlp_bias = false;                   // in the MLP
  std::string activation = "silu";         // of the MLP: activation_named
  std::string qk_norm = "none";            // of queries and keys: "head" (Qwen 3) or "whole" (OLMo 2)
  std::string norms = "before";            // of the branches: "after" (OLMo 2) or "both" (Gemma)
  bool plus_one = false;                   // gains are 1 + weight (Gemma)
  double embedding_scale = 1;              // of embedded tokens (Gemma: √width)
  double attention_scale = 0;              // of scores; 0: 1/√head_width
  double attention_softcap = 0;            // of scores; 0: none
  double logit_softcap = 0;                // of logits; 0: none
  std::vector<std::int64_t> windows = {};  // keys that a query sees in layer i: number i, and from the first
                                           // again after the last; 0: all. Empty: all in every layer
  std::int64_t rotary_width = 0;  // of a head's numbers, the first ones that turn; 0: all (Phi 4: 96)
  std::vector<std::int64_t> rotated = {};  // likewise, whether layer i has rotary positions: 1 or 0
  double window_theta = 0;                 // theta of layers with a window, unscaled; 0: as the others
  RopeScaling scaling = {};                // of the frequencies

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
  void complete(const ModelConfig& c);
  void check(const ModelConfig& c) const;
  std::string text(const ModelConfig& c) const;
  ModelParts make(const Path& at, const ModelConfig& c) const;

 private:
  RotaryStack stack() const;
};

}  // namespace tg::nn
