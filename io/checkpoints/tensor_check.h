// The tensors and settings of a file of weights, compared with those of a model. Messages begin with `where`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::io {

// The file's tensor of that name. Throws FormatError if there is none, or it has another shape or, if one is
// given, another dtype.
const TensorView& tensor_like(const TensorMap& tensors, const std::string& name, const Shape& shape,
                              std::optional<DType> dtype, const std::string& where);

// Throws Error if two parameters have one name.
void check_names(const std::vector<Parameter>& parameters, const std::string& where);

// Settings of the parameters, as metadata of the file that holds them.
void add_settings(const std::vector<Parameter>& parameters, Metadata& metadata);

// Settings of layers that the parameters do not have: an error if the parameters are the whole model.
enum class OtherSettings { ignore, refuse };

// Throws FormatError if the metadata has a different value for a setting of the parameters, or a setting that
// a layer of theirs does not have. A file, or a layer, that names no settings is not compared.
void check_settings(const std::vector<Parameter>& parameters, const Metadata& metadata,
                    const std::string& where, OtherSettings others = OtherSettings::ignore);
// The same for the whole model of a configuration: what its weights do not show (heads, theta …).
void check_settings(const nn::ModelConfig& config, const Metadata& metadata, const std::string& where);

}  // namespace tg::io
