// Where the values of a model's parameters lie among the tensors of a Hugging Face file. Names are theirs
// (for GPT, nanoGPT's, which are the same), so only what lies otherwise is listed.
#pragma once

#include <string>

#include <tilegrad/nn/models/model_config.h>

namespace tg::io {

struct HfTensor {
  std::string name;            // theirs
  bool is_transposed = false;  // theirs is [columns, rows]
  std::int64_t first_row = 0;  // ours is that row of theirs and those after it
  Shape shape = {};            // theirs
};

// Of the parameter of that name and shape, of a model of a family (HfConfig::family, HfConfig::model).
HfTensor hf_tensor(const std::string& family, const nn::ModelConfig& model, const std::string& parameter,
                   const Shape& shape);

// Whether a tensor of theirs is not a weight that the model has: buffers that are computed, and layers that
// predict further tokens, which follow the `layers` of the model.
bool is_dropped_by_hf(const std::string& family, const std::string& name, std::int64_t layers);

}  // namespace tg::io
