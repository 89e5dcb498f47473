// The metadata of a file of weights that describes the model they belong to.
#pragma once

#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/nn/models/architecture.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::io {

// "model", the architecture's name, and every setting that the model's parameters and results depend on.
Metadata to_metadata(nn::ModelConfig config);

// The configuration that such metadata describes, of one of the `known` architectures; other keys are
// ignored. Throws FormatError, beginning with `where`, when a key is missing or malformed, or the sizes do
// not fit together.
nn::ModelConfig model_config(const Metadata& metadata, const std::string& where,
                             const std::vector<nn::Architecture>& known = nn::architectures());
// The same for the metadata of a file, whose tensors must be those of the model: every name, every shape, one
// floating type; else FormatError. Nothing is created, so that a file that lies about a size costs no memory.
nn::ModelConfig model_config(const SafeTensors& file, const std::string& where,
                             const std::vector<nn::Architecture>& known = nn::architectures());

}  // namespace tg::io
