// safetensors files: named tensors and no executable content. The loader enforces every rule of the reference
// implementation, so that an inconsistent file is rejected before any of its bytes is used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/core/base/dtype.h>
#include <tilegrad/io/files/mapped_file.h>

namespace tg::io {

// A tensor as it is stored in a file: row-major, little-endian, shape {} for a scalar. A view that owns
// nothing.
struct TensorView {
  DType dtype = f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  // product of shape × size_of(dtype)
};

using TensorMap = std::map<std::string, TensorView>;
using Metadata = std::map<std::string, std::string>;

// A loaded file. The views look into `storage`, so it can be moved but not copied; files of our writer (and
// of the reference one) give views aligned to their element size, other files need not.
struct SafeTensors {
  TensorMap tensors;
  Metadata metadata;
  std::string storage;  // the file's bytes

  SafeTensors() = default;
  SafeTensors(SafeTensors&&) noexcept = default;
  SafeTensors& operator=(SafeTensors&&) noexcept = default;
};

// Throws Error if the file cannot be read, FormatError with the file, the tensor and the broken rule. Values
// are not inspected (NaN is data), but any nonzero byte of a bool tensor becomes 1, so that it can be read as
// bool.
SafeTensors load_safetensors(const std::string& path);

// The same for a file's bytes already in memory; `where` begins the messages.
SafeTensors parse_safetensors(std::string file, std::string_view where);

// A file of which only the pages that are read are in memory. Its views are those of load_safetensors(),
// except that bytes of bool tensors are as they lie in the file.
struct MappedSafeTensors {
  MappedFile file;
  TensorMap tensors = {};
  Metadata metadata = {};
};
// Throws as load_safetensors(). Call file.check() after the bytes of tensors are read: they are zero if the
// file was truncated meanwhile.
MappedSafeTensors map_safetensors(const std::string& path, std::string_view who);

// The content of a file: the length of its header, the header, then the bytes of the tensors, which are not
// copied and must outlive it. Tensors come widest dtype first, then by name, from an offset that is a
// multiple of 8: each is aligned to its elements. ShapeError when bytes and shape disagree; FormatError for a
// name or metadata text that is not UTF-8, or a header over 100 MB; messages begin with `where`.
struct SafeTensorsContent {
  std::string header;
  std::vector<std::string_view> tensors;
  std::vector<std::string_view> pieces() const;  // header and tensors
};
SafeTensorsContent safetensors_content(const TensorMap& tensors, const Metadata& metadata,
                                       const std::string& where);

// Replaces the file by such a content, or leaves it unchanged (io/files/file.h).
void save_safetensors(const std::string& path, const TensorMap& tensors, const Metadata& metadata = {});

}  // namespace tg::io
