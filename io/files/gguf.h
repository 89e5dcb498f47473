// Gguf: a GGUF file (gguf_format.h) that was checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/io/files/mapped_file.h>
#include "io/files/gguf_format.h"

namespace tg::io {

struct GgufTensor {
  std::string_view name;
  GgufType type = GgufType::f32;
  std::vector<std::int64_t> shape;  // row-major, as everywhere here: the slowest first
  std::string_view bytes;
};

// A file that was checked. It keeps 8 bytes for each key and tensor, and a bit for each key. It refers to the
// bytes, which must outlive it. Reading values of keys is for one thread at a time, since it marks them. No
// call asks for a piece of memory that is larger than the file and 64 KiB; so items of arrays, which may be
// much smaller in the file than in a vector, are given one by one.
class Gguf {
 public:
  // Versions 2 and 3. Throws FormatError, beginning with `where`, naming key or tensor and the broken rule,
  // for a file that is not consistent, and for tensors of other types than GgufType's. Values of tensors are
  // not looked at.
  Gguf(std::string_view file, std::string where);

  const std::string& where() const { return where_; }
  std::vector<std::string_view> keys() const;  // in order of their names
  std::size_t tensor_count() const { return tensors_.size(); }
  GgufTensor tensor(std::size_t i) const;  // in order of their names
  std::optional<GgufTensor> tensor(std::string_view name) const;

  bool has(std::string_view key) const { return find(key).has_value(); }
  // The first key, in order of their names, whose value was not asked for and that `is_known` does not know;
  // "" if there is none.
  std::string_view unread_key(const std::function<bool(std::string_view)>& is_known) const;
  // Throws FormatError for a key that is not there, or of another kind. Whole numbers are of any width.
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;  // f32, f64 or a whole one
  bool boolean(std::string_view key) const;
  std::string string(std::string_view key) const;
  // Of an array: how many items it has; calls f with each of them. Strings need not be UTF-8.
  std::uint64_t count(std::string_view key) const;
  void each_string(std::string_view key, const std::function<void(std::string_view)>& f) const;
  // Booleans count as 0 and 1.
  void each_integer(std::string_view key, const std::function<void(std::int64_t)>& f) const;
  void each_number(std::string_view key, const std::function<void(double)>& f) const;
  bool is_array(std::string_view key) const;
  // The same, but `otherwise` where the key is not there.
  std::int64_t integer(std::string_view key, std::int64_t otherwise) const;
  double number(std::string_view key, double otherwise) const;
  bool boolean(std::string_view key, bool otherwise) const;
  std::string string(std::string_view key, const std::string& otherwise) const;

  // The value of a key for messages; shortened.
  std::string text(std::string_view key) const;
  // Throws FormatError: "<where>: key is <value>, expected …".
  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const;

 private:
  struct Value {
    GgufKind kind, item;  // item: of an array
    std::uint64_t count;  // 1 if it is none
    std::string_view bytes;
    std::size_t index;  // among keys_
  };
  std::optional<Value> find(std::string_view key) const;
  Value value(std::string_view key, const char* expected) const;
  GgufTensor tensor_from(std::uint64_t place) const;

  std::string_view file_;
  std::string where_;
  std::uint64_t data_ = 0;                     // where the tensors' data begin
  std::vector<std::uint64_t> keys_, tensors_;  // where they begin, in order of their names
  mutable std::vector<bool> is_read_;          // of each key, whether its value was asked for
};

struct MappedGguf {
  MappedFile file;
  Gguf gguf;
  MappedGguf(const std::string& path, std::string_view who);
};

// Whether the path is that of a file, which as a model can only be GGUF, and not of a folder.
bool is_gguf_file(const std::string& path);

}  // namespace tg::io
