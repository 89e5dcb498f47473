// What llama.cpp's architectures can represent, of the settings that models of ours may have.
#pragma once

#include <cstdint>
#include <string>

namespace tg::io {

struct GgufArchitecture {
  const char* name;
  // Tensors that it reads if they are there; others make it refuse a file.
  bool qkv_bias = true;      // of queries, keys and values
  bool output_bias = false;  // of attention's output
  bool mlp_bias = false;
  bool divisors = false;                                // rope_freqs.weight
  enum class Head { any, tied, own } head = Head::any;  // the output is the embedding, or a tensor of its own
  // Settings for which it has a key, or a rule.
  bool any_head_width = true;  // else it is width / heads
  bool partial_rotary = false;
  bool longrope = false;           // rope_factors_long.weight and rope_factors_short.weight
  bool gelu = false;               // in the MLP, by tanh; else SiLU
  bool attention_softcap = false;  // which must be there then
  bool logit_softcap = false;
  bool windows = false;  // of some layers; elsewhere the file is right for texts up to the window
  std::int64_t unrotated_period = 0;  // every so many layers have no rotary positions; 0: all have them
  // Layers of the model whose scores have the scale 1/√(width / heads), not that of the heads' width; 0:
  // none.
  std::int64_t layers_by_width = 0;
};

// Null for a name that is not known.
const GgufArchitecture* gguf_architecture_named(const std::string& name);
std::string gguf_architecture_names();  // "gpt2, llama, …"

// llama.cpp has no longer models.
inline constexpr std::int64_t most_gguf_layers = 512;

}  // namespace tg::io
