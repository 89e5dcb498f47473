// What llama.cpp computes from the keys rope.* of a GGUF file. Both directions use it: a file is written only
// if that is what the model computes, and a file that is read becomes a model that computes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <tilegrad/nn/models/rope_scaling.h>

namespace tg::io {

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
