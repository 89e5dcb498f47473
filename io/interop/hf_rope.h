// Rotary positions in config.json: rope_parameters, or rope_theta and rope_scaling.
#pragma once

#include <tilegrad/nn/models/rope_scaling.h>
#include "io/interop/json_object.h"

namespace tg::io {

// What a family's files mean where they say nothing.
struct HfUsualRope {
  double theta = 10000;
  double context = 0;  // max_position_embeddings
  // Phi 3: a part of each head is rotated, "su" and "yarn" are earlier names of "longrope", and the first
  // context is 4096.
  bool is_phi3 = false;
};

struct HfRope {
  double theta = 10000;
  nn::RopeScaling scaling = {};
  double score_scale = 1;  // factor of the scores' scale, DeepSeek's: m(mscale_all_dim)²
  double share = 1;        // of each head, that is rotated: partial_rotary_factor
};

// YaRN's growth of the scores with the factor, m(mscale).
double yarn_growth(double factor, double mscale);

// Throws FormatError for a type that is not known.
HfRope hf_rope(const JsonObject& config, const HfUsualRope& usual);
// The same of one kind of layers, where `rope` is their part of rope_parameters, or rope_scaling.
HfRope hf_rope_of(const JsonObject& rope, const JsonObject& config, const HfUsualRope& usual);

// The inverse: rope_parameters of transformers 5, and rope_scaling of transformers 4, or null.
std::string hf_rope_json(const HfRope& rope);
std::string hf_rope_scaling_json(const HfRope& rope);

}  // namespace tg::io
