// The beginning of a safetensors file whose tensors are written one after another.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <tilegrad/io/files/safetensors.h>

namespace tg::io {

struct TensorKind {
  DType dtype = f32;
  std::vector<std::int64_t> shape;
};

struct SafeTensorsStart {
  std::string bytes;               // the header and its length; the tensors' bytes follow
  std::vector<std::string> order;  // of the tensors: by name, those of wide elements first
};

// Throws FormatError for a name or metadata text that is not UTF-8, or a header over 100 MB, ShapeError for a
// size beyond 64 bits; messages begin with `where`.
SafeTensorsStart safetensors_start(const std::map<std::string, TensorKind>& tensors, const Metadata& metadata,
                                   const std::string& where);

}  // namespace tg::io
