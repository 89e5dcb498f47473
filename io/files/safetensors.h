// Reads and writes safetensors files: named tensors without executable content. The loader enforces every
// rule of the reference implementation. It rejects an inconsistent file before it uses the file's bytes.
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

// A tensor as stored in a file: row-major and little-endian. It owns nothing.
struct TensorView {
  DType dtype = f32;                 // element type
  std::vector<std::int64_t> shape;   // dimensions; {} for a scalar
  std::span<const std::byte> bytes;  // product of shape × size_of(dtype) bytes; not necessarily aligned
};

// Tensors by name.
using TensorMap = std::map<std::string, TensorView>;
// The string metadata of a file, by key.
using Metadata = std::map<std::string, std::string>;

// A loaded file. The views point into `storage`, so it can be moved but not copied. If the file was written
// by this library or by the reference implementation, views are aligned to their element size.
struct SafeTensors {
  TensorMap tensors;    // views into `storage`, by name
  Metadata metadata;    // the header's "__metadata__"
  std::string storage;  // the file's bytes

  // An empty file; it can be moved.
  SafeTensors() = default;
  SafeTensors(SafeTensors&&) noexcept = default;
  SafeTensors& operator=(SafeTensors&&) noexcept = default;
};

// Loads a file. Throws Error if the file cannot be read. Throws FormatError with the file, the tensor and the
// violated rule if the file is invalid. Values are not checked, so NaN is allowed. Nonzero bytes of bool
// tensors become 1.
SafeTensors load_safetensors(const std::string& path);

// Does the same for the bytes of a file that are already in memory. `where` begins error messages.
SafeTensors parse_safetensors(std::string file, std::string_view where);

// A mapped file: only accessed pages are read.
struct MappedSafeTensors {
  MappedFile file;         // the mapping
  TensorMap tensors = {};  // views into the mapping; bytes of bool tensors are unchanged
  Metadata metadata = {};  // the header's "__metadata__"
};
// Maps a file. Throws as load_safetensors() does. Call file.check() after reading tensor bytes, because they
// are zero if the file was truncated in the meantime.
MappedSafeTensors map_safetensors(const std::string& path, std::string_view who);

// The content of a file: the length of its header, the header, then the bytes of the tensors.
struct SafeTensorsContent {
  std::string header;                     // length and JSON header
  std::vector<std::string_view> tensors;  // the tensors' bytes, not copied
  // Header and tensors, in file order.
  std::vector<std::string_view> pieces() const;
};
// Makes the content of a file from tensors. Their bytes must outlive the result. Tensors are sorted by
// element size, widest first, then by name. The first tensor begins at a multiple of 8, so every tensor is
// aligned to its element size. Throws ShapeError if the bytes of a tensor do not match its shape. Throws
// FormatError if a name or metadata string is not UTF-8, or if the header is larger than 100 MB. `where`
// begins error messages.
SafeTensorsContent safetensors_content(const TensorMap& tensors, const Metadata& metadata,
                                       const std::string& where);

// Replaces a file with such content, completely or not at all. Throws as replace_file() (io/files/file.h) and
// safetensors_content() do.
void save_safetensors(const std::string& path, const TensorMap& tensors, const Metadata& metadata = {});

}  // namespace tg::io
