// Metadata of a weights file that describes its model.
#pragma once

#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/nn/models/architecture.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::io {

// Returns the metadata of a model: "model", the architecture's name, and every setting on which its
// parameters and results depend.
Metadata to_metadata(nn::ModelConfig config);

// Returns the model configuration from such metadata. Its architecture must be one of `known`. Other keys are
// ignored. Throws FormatError if a key is missing or malformed, or if sizes are inconsistent. The message
// begins with `where`.
nn::ModelConfig model_config(const Metadata& metadata, const std::string& where,
                             const std::vector<nn::Architecture>& known = nn::architectures());
// Returns the configuration from a file's metadata. The file must contain exactly the model's tensors, with
// their shapes, all of the same floating dtype. Otherwise throws FormatError. Allocates no parameters, so a
// false size in a file costs no memory.
nn::ModelConfig model_config(const SafeTensors& file, const std::string& where,
                             const std::vector<nn::Architecture>& known = nn::architectures());

}  // namespace tg::io
