// How llama.cpp interprets the keys of a GGUF file: the settings of its architectures, the layers with
// windows, and rotary positions. The writer and the reader of these keys share this header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/nn/models/rotary_stack.h>

namespace tg::io {

// ---- Settings that each architecture can represent

struct GgufArchitecture {
  const char* name;
  // Optional tensors that llama.cpp reads for this architecture. It rejects a file with any other tensor.
  bool qkv_bias = true;      // of queries, keys and values
  bool output_bias = false;  // of the output of attention
  bool mlp_bias = false;
  bool divisors = false;  // rope_freqs.weight
  // The output weight: the embedding (tied), a separate tensor (own), or either of them (any).
  enum class Head { any, tied, own } head = Head::any;
  // Settings for which llama.cpp has a key or a rule.
  bool any_head_width = true;  // otherwise it is width / heads
  bool partial_rotary = false;
  bool longrope = false;           // rope_factors_long.weight and rope_factors_short.weight
  bool gelu = false;               // in the MLP, by tanh; otherwise SiLU
  bool attention_softcap = false;  // if true, it is required
  bool logit_softcap = false;
  // Whether some layers can have windows. Otherwise llama.cpp computes the right results only for sequences
  // up to the window.
  bool windows = false;
  // Every n-th layer has no rotary positions; 0: all layers have them.
  std::int64_t unrotated_period = 0;
  // Models with this number of layers scale scores by 1/√(width / heads). Other models scale them by 1/√(head
  // size). 0: there are no such models.
  std::int64_t layers_by_width = 0;
};

// Returns null for an unknown name.
const GgufArchitecture* gguf_architecture_named(const std::string& name);
std::string gguf_architecture_names();  // "gpt2, llama, …"

// llama.cpp's maximum number of layers.
inline constexpr std::int64_t most_gguf_layers = 512;

// ---- Windows: the layers that have one if the file does not specify it

// Returns the element of a list for a layer. A list that is too short is repeated. Returns `usual` for an
// empty list.
inline std::int64_t of_gguf_layer(const std::vector<std::int64_t>& list, std::int64_t layer,
                                  std::int64_t usual) {
  return list.empty() ? usual : list[static_cast<std::size_t>(layer) % list.size()];
}

// In llama.cpp, each n-th layer has no window, and all other layers have one. Returns n, or 0 if no layer has
// a window.
inline std::int64_t usual_gguf_pattern(const std::string& architecture) {
  return architecture == "gemma2" ? 2 : architecture == "gemma3" ? 6 : 0;
}

// ---- Rotary positions: the meaning of the keys rope.*. A file is written only if these keys describe the
// model's computation exactly. A model that is read follows the keys exactly.

// The values of the keys, and the tensor of divisors.
struct GgufRope {
  std::string type = "none";  // rope.scaling.type: none, linear or yarn
  double factor = 1;          // rope.scaling.factor
  double original = 0;        // rope.scaling.original_context_length
  double attn_factor = 1;     // rope.scaling.attn_factor
  double log_multiplier = 0;  // rope.scaling.yarn_log_multiplier: only in deepseek2
  // Divisors of the frequencies, from rope_freqs.weight or one of LongRoPE's two tensors. Empty if there are
  // none.
  std::vector<float> divisors = {};
};

struct GgufRotation {
  std::vector<double> frequencies;  // of d/2 pairs
  double magnitude = 1;             // factor of sine and cosine
  double window_magnitude = 1;      // for the windowed layers of gemma3, whose frequencies are not scaled
  double score_scale = 1;           // in deepseek2: scale of scores, multiplied by √(key width)
};
GgufRotation gguf_rotation(const GgufRope& keys, std::int64_t d, double theta);

// Returns the keys for this scaling without divisors and for this scale of scores. If the keys cannot express
// them, gguf_rotation() of the result differs from the model.
GgufRope gguf_rope_for(const nn::RopeScaling& scaling, double score_scale, bool is_deepseek);

// Whether two numbers are equal up to the rounding of keys to f32.
bool is_same_in_gguf(double a, double b);

}  // namespace tg::io
