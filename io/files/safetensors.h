// Reads and writes safetensors files: named tensors without executable content. The loader enforces every
// rule of the reference implementation and rejects an inconsistent file before it uses any of its bytes.
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

// A loaded file. The views point into `storage`, so it can be moved but not copied. Files of our writer and
// of the reference writer give views aligned to their element size; other files may not.
struct SafeTensors {
  TensorMap tensors;    // views into `storage`, by name
  Metadata metadata;    // the header's "__metadata__"
  std::string storage;  // the file's bytes

  // An empty file; it can be moved.
  SafeTensors() = default;
  SafeTensors(SafeTensors&&) noexcept = default;
  SafeTensors& operator=(SafeTensors&&) noexcept = default;
};

// Loads a file. Throws Error if it cannot be read, FormatError that names the file, the tensor and the
// violated rule. Values are not checked (NaN is allowed), but nonzero bytes of bool tensors become 1.
SafeTensors load_safetensors(const std::string& path);

// As load_safetensors(), for a file's bytes that are already in memory. `where` begins error messages.
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
// Makes the content of a file from tensors, whose bytes must outlive it. Tensors are ordered by element size,
// widest first, then by name. The first one begins at a multiple of 8, so that each is aligned to its
// elements. Throws ShapeError if bytes and shape disagree, FormatError for a name or metadata string that is
// not UTF-8 and for a header above 100 MB. `where` begins error messages.
SafeTensorsContent safetensors_content(const TensorMap& tensors, const Metadata& metadata,
                                       const std::string& where);

// Replaces a file with such content, or leaves it unchanged. Throws as replace_file() (io/files/file.h) and
// safetensors_content() do.
void save_safetensors(const std::string& path, const TensorMap& tensors, const Metadata& metadata = {});

}  // namespace tg::io
