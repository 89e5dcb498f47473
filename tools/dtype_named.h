// Floating dtypes as options name them.
#pragma once

#include <string>

#include <tilegrad/core/base/dtype.h>

namespace tg {

// "f32", "bf16" or "f16", the choices of an option.
inline DType dtype_named(const std::string& name) {
  return name == "f32" ? f32 : name == "bf16" ? bf16 : f16;
}

}  // namespace tg
