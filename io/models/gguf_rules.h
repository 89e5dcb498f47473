// What llama.cpp computes from the keys of a GGUF file: the settings of its architectures, the layers with
// windows, and rotary positions. The writer and the reader of these keys both use these rules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/nn/models/rotary_stack.h>

namespace tg::io {

// ---- Settings: those that each architecture can represent, of those that models of ours may have

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

// ---- Windows: which layers have them where a file does not say so

// A list's number of a layer: it begins again where it ends; `usual` if it is empty.
inline std::int64_t of_gguf_layer(const std::vector<std::int64_t>& list, std::int64_t layer,
                                  std::int64_t usual) {
  return list.empty() ? usual : list[static_cast<std::size_t>(layer) % list.size()];
}

// llama.cpp has them in all but every n-th layer; 0: nowhere.
inline std::int64_t usual_gguf_pattern(const std::string& architecture) {
  return architecture == "gemma2" ? 2 : architecture == "gemma3" ? 6 : 0;
}

// ---- Rotary positions: what the keys rope.* mean. A file is written only if that is what the model
// computes, and a file that is read becomes a model that computes it.

// The keys by their last parts, and the tensor of divisors.
struct GgufRope {
  std::string type = "none";  // rope.scaling.type: none, linear or yarn
  double factor = 1;          // rope.scaling.factor
  double original = 0;        // rope.scaling.original_context_length
  double attn_factor = 1;     // rope.scaling.attn_factor
  double log_multiplier = 0;  // rope.scaling.yarn_log_multiplier: of deepseek2 only
  std::vector<float> divisors =
      {};  // of frequencies: rope_freqs.weight or one of the two of LongRoPE; or empty
};

struct GgufRotation {
  std::vector<double> frequencies;  // of d/2 pairs
  double magnitude = 1;             // of sine and cosine
  double window_magnitude = 1;  // the same in gemma3's layers with a window, whose frequencies are not scaled
  double score_scale = 1;       // deepseek2's scale of scores, times the square root of their width
};
GgufRotation gguf_rotation(const GgufRope& keys, std::int64_t d, double theta);

// The keys for frequencies that are scaled so, without divisors, and that scale of scores. What they cannot
// express is found by comparing their gguf_rotation() with the model.
GgufRope gguf_rope_for(const nn::RopeScaling& scaling, double score_scale, bool is_deepseek);

// Whether two numbers are the same up to the rounding of keys to f32.
bool is_same_in_gguf(double a, double b);

}  // namespace tg::io
