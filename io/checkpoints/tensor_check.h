// Compares the tensors and settings of a weights file with a model. Error messages begin with `where`.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/io/files/safetensors.h>
#include <tilegrad/nn/models/model_config.h>

namespace tg::io {

// Returns the file's tensor with this name. Throws FormatError if it does not exist or has a different shape
// or, if `dtype` is given, a different dtype.
const TensorView& tensor_like(const TensorMap& tensors, const std::string& name, const Shape& shape,
                              std::optional<DType> dtype, const std::string& where);

// Throws Error if two parameters have the same name.
void check_names(const std::vector<Parameter>& parameters, const std::string& where);

// Adds the settings of the parameters to the metadata of their file.
void add_settings(const std::vector<Parameter>& parameters, Metadata& metadata);

// How check_settings() handles the settings of layers that have none of the given parameters. Use `refuse` if
// the parameters form a complete model.
enum class OtherSettings { ignore, refuse };

// Compares the settings of the parameters with the metadata. Throws FormatError if a value differs, or if the
// metadata has a setting that the parameter's layer lacks. A file or layer without settings is not compared.
void check_settings(const std::vector<Parameter>& parameters, const Metadata& metadata,
                    const std::string& where, OtherSettings others = OtherSettings::ignore);
// Does the same for the complete model of a configuration. Compares settings that cannot be derived from the
// weights, such as the number of heads and theta.
void check_settings(const nn::ModelConfig& config, const Metadata& metadata, const std::string& where);

}  // namespace tg::io
