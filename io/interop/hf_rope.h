// Rotary positions in config.json: rope_parameters, or rope_theta and rope_scaling.
#pragma once

#include <tilegrad/nn/models/rope_scaling.h>
#include "io/interop/json_object.h"

namespace tg::io {

struct HfRope {
  double theta = 10000;
  nn::RopeScaling scaling = {};
  double score_scale = 1;  // factor of the scores' scale, DeepSeek's: m(mscale_all_dim)²
};

// `context` is max_position_embeddings. Throws FormatError for a type that is not known.
HfRope hf_rope(const JsonObject& config, double usual_theta, double context);
// The same of one kind of layers, where `rope` is their part of rope_parameters, or rope_scaling.
HfRope hf_rope_of(const JsonObject& rope, const JsonObject& config, double usual_theta, double context);

// The inverse: rope_parameters of transformers 5.
std::string hf_rope_json(const HfRope& rope);

}  // namespace tg::io
