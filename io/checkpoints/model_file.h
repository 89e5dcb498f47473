// Metadata of a weights file that describes its model.
#pragma once

#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/nn/models/architecture.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::io {

// Returns the metadata of a model: "model", the architecture's name, and every setting on which its
// parameters and results depend.
Metadata to_metadata(nn::ModelConfig config);

// Returns the configuration that such metadata describes, with one of the `known` architectures. Other keys
// are ignored. Throws FormatError, beginning with `where`, if a key is missing or malformed, or if sizes are
// inconsistent.
nn::ModelConfig model_config(const Metadata& metadata, const std::string& where,
                             const std::vector<nn::Architecture>& known = nn::architectures());
// As above, from a file's metadata. The file's tensors must be the model's: each name, each shape, one
// floating dtype. Otherwise throws FormatError. Allocates no parameters, so a false size in a file costs no
// memory.
nn::ModelConfig model_config(const SafeTensors& file, const std::string& where,
                             const std::vector<nn::Architecture>& known = nn::architectures());

}  // namespace tg::io
