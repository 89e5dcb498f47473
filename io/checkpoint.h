// Parameters as a safetensors file, and back.
#pragma once

#include <string>
#include <vector>

#include "core/parameter.h"
#include "io/safetensors.h"

namespace tg {

// Replaces the file as a whole or leaves it untouched.
void save_parameters(const std::string& path, const std::vector<Parameter>& parameters,
                     const Metadata& metadata = {});

// Writes the file's values into the parameters and returns its metadata. Names, shapes and dtypes must be the
// same on both sides, else FormatError, and no parameter has changed.
Metadata load_parameters(const std::string& path, const std::vector<Parameter>& parameters);

}  // namespace tg
