// What a file of weights says in its metadata about the model they belong to.
#pragma once

#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/nn/models/model.h>

namespace tg::io {

// "model" (gpt, llama, deepseek) and every size that the model's parameters and results depend on.
Metadata to_metadata(const nn::ModelConfig& config);

// The configuration that such metadata, other keys beside it or not, describes. Throws FormatError, beginning
// with `where`, when a key is missing, is not what it should be, or the sizes do not fit together.
nn::ModelConfig model_config(const Metadata& metadata, const std::string& where);
// The same of a file's metadata, and FormatError for more layers than its tensors can be of: before a model
// is made, which takes time and memory for each.
nn::ModelConfig model_config(const SafeTensors& file, const std::string& where);

}  // namespace tg::io
