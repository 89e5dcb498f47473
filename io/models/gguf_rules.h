// The semantics of a GGUF file's keys in llama.cpp: the settings of its architectures, the layers with
// windows, and rotary positions. The writer and the reader of these keys both use them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/nn/models/rotary_stack.h>

namespace tg::io {

// ---- Settings that each architecture can represent

struct GgufArchitecture {
  const char* name;
  // Optional tensors that it reads. It rejects a file with any other tensor.
  bool qkv_bias = true;      // of queries, keys and values
  bool output_bias = false;  // of attention's output
  bool mlp_bias = false;
  bool divisors = false;  // rope_freqs.weight
  // Whether the output weight is the embedding, a separate tensor, or either.
  enum class Head { any, tied, own } head = Head::any;
  // Settings for which it has a key or a rule.
  bool any_head_width = true;  // otherwise it is width / heads
  bool partial_rotary = false;
  bool longrope = false;           // rope_factors_long.weight and rope_factors_short.weight
  bool gelu = false;               // in the MLP, by tanh; otherwise SiLU
  bool attention_softcap = false;  // then it is required
  bool logit_softcap = false;
  // Whether some layers can have windows. Otherwise the file is right for sequences up to the window.
  bool windows = false;
  // Every n-th layer has no rotary positions; 0: all layers have them.
  std::int64_t unrotated_period = 0;
  // Number of layers of the model whose scores are scaled by 1/√(width / heads) instead of the head size; 0:
  // none.
  std::int64_t layers_by_width = 0;
};

// Returns null for an unknown name.
const GgufArchitecture* gguf_architecture_named(const std::string& name);
std::string gguf_architecture_names();  // "gpt2, llama, …"

// llama.cpp's maximum number of layers.
inline constexpr std::int64_t most_gguf_layers = 512;

// ---- Windows: which layers have them if a file does not specify it

// Returns a layer's element of a list, which is repeated; `usual` if the list is empty.
inline std::int64_t of_gguf_layer(const std::vector<std::int64_t>& list, std::int64_t layer,
                                  std::int64_t usual) {
  return list.empty() ? usual : list[static_cast<std::size_t>(layer) % list.size()];
}

// In llama.cpp, every layer except each n-th has a window; 0: no layer has.
inline std::int64_t usual_gguf_pattern(const std::string& architecture) {
  return architecture == "gemma2" ? 2 : architecture == "gemma3" ? 6 : 0;
}

// ---- Rotary positions: the meaning of the keys rope.*. A file is written only if they describe exactly the
// model's computation. A model that is read follows them exactly.

// The keys by the last parts of their names, and the tensor of divisors.
struct GgufRope {
  std::string type = "none";  // rope.scaling.type: none, linear or yarn
  double factor = 1;          // rope.scaling.factor
  double original = 0;        // rope.scaling.original_context_length
  double attn_factor = 1;     // rope.scaling.attn_factor
  double log_multiplier = 0;  // rope.scaling.yarn_log_multiplier: only in deepseek2
  // Divisors of the frequencies: rope_freqs.weight or one of LongRoPE's two tensors; or empty.
  std::vector<float> divisors = {};
};

struct GgufRotation {
  std::vector<double> frequencies;  // of d/2 pairs
  double magnitude = 1;             // factor of sine and cosine
  double window_magnitude = 1;      // of windowed layers in gemma3, whose frequencies are not scaled
  double score_scale = 1;           // scale of scores in deepseek2, times the square root of their width
};
GgufRotation gguf_rotation(const GgufRope& keys, std::int64_t d, double theta);

// Returns the keys for such a scaling without divisors and for that scale of scores. If they cannot express
// it, their gguf_rotation() differs from the model.
GgufRope gguf_rope_for(const nn::RopeScaling& scaling, double score_scale, bool is_deepseek);

// Whether two numbers are equal up to the rounding of keys to f32.
bool is_same_in_gguf(double a, double b);

}  // namespace tg::io
