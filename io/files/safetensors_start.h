// The start of a safetensors file. A writer then appends the tensors one by one.
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
  std::string bytes;               // length of the header and header; the bytes of the tensors follow
  std::vector<std::string> order;  // names of the tensors: widest dtype first, then by name
};

// Throws FormatError if a name or metadata string is not UTF-8 or the header is above 100 MB. Throws
// ShapeError if a size exceeds 64 bits. Messages begin with `where`.
SafeTensorsStart safetensors_start(const std::map<std::string, TensorKind>& tensors, const Metadata& metadata,
                                   const std::string& where);

}  // namespace tg::io
