// The beginning of a safetensors file, for writing its tensors one after another.
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
  std::string bytes;               // header and its length; the tensors' bytes follow
  std::vector<std::string> order;  // of the tensors: widest dtype first, then by name
};

// Throws FormatError for a name or metadata string that is not UTF-8 and for a header above 100 MB,
// ShapeError for a size beyond 64 bits. Messages begin with `where`.
SafeTensorsStart safetensors_start(const std::map<std::string, TensorKind>& tensors, const Metadata& metadata,
                                   const std::string& where);

}  // namespace tg::io
