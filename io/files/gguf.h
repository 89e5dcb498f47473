// Gguf: a checked GGUF file (gguf_format.h).
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
  std::vector<std::int64_t> shape;  // row-major: the slowest axis first
  std::string_view bytes;
};

// A checked file. The object needs 8 bytes per key and tensor, and a bit per key. It refers to the file's
// bytes, which must outlive it. Only one thread at a time may read values, because reading marks their keys.
// No call allocates a block larger than the file plus 64 KiB. Array items are passed one by one, because they
// may need much more memory in a vector than in the file.
class Gguf {
 public:
  // Accepts versions 2 and 3. Throws FormatError for an inconsistent file and for tensor types that GgufType
  // does not have. The message begins with `where` and contains the key or tensor and the broken rule. Values
  // of tensors are not checked.
  Gguf(std::string_view file, std::string where);

  const std::string& where() const { return where_; }
  std::vector<std::string_view> keys() const;  // sorted by name
  std::size_t tensor_count() const { return tensors_.size(); }
  GgufTensor tensor(std::size_t i) const;  // sorted by name
  std::optional<GgufTensor> tensor(std::string_view name) const;

  bool has(std::string_view key) const { return find(key).has_value(); }
  // Returns the first key, by name, that was not read and for which `is_known` returns false. Returns "" if
  // there is none.
  std::string_view unread_key(const std::function<bool(std::string_view)>& is_known) const;
  // These functions throw FormatError if the key is missing or has a different kind. Integers may have any
  // width.
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;  // f32, f64 or integer
  bool boolean(std::string_view key) const;
  std::string string(std::string_view key) const;
  // For an array, count() returns the number of items. The functions below call f with each item. Strings
  // need not be UTF-8.
  std::uint64_t count(std::string_view key) const;
  void each_string(std::string_view key, const std::function<void(std::string_view)>& f) const;
  // Booleans are passed as 0 and 1.
  void each_integer(std::string_view key, const std::function<void(std::int64_t)>& f) const;
  void each_number(std::string_view key, const std::function<void(double)>& f) const;
  bool is_array(std::string_view key) const;
  // These functions return `otherwise` if the key is missing.
  std::int64_t integer(std::string_view key, std::int64_t otherwise) const;
  double number(std::string_view key, double otherwise) const;
  bool boolean(std::string_view key, bool otherwise) const;
  std::string string(std::string_view key, const std::string& otherwise) const;

  // Returns the value of a key, shortened for messages.
  std::string text(std::string_view key) const;
  // Throws FormatError: "<where>: key is <value>, expected …".
  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const;

 private:
  struct Value {
    GgufKind kind, item;  // item: kind of an array's items
    std::uint64_t count;  // number of items of an array; otherwise 1
    std::string_view bytes;
    std::size_t index;  // index in keys_
  };
  std::optional<Value> find(std::string_view key) const;
  Value value(std::string_view key, const char* expected) const;
  GgufTensor tensor_from(std::uint64_t place) const;

  std::string_view file_;
  std::string where_;
  std::uint64_t data_ = 0;                     // offset of the tensors' data
  std::vector<std::uint64_t> keys_, tensors_;  // offsets of keys and tensors, sorted by name
  mutable std::vector<bool> is_read_;          // for each key, whether its value was read
};

struct MappedGguf {
  MappedFile file;
  Gguf gguf;
  MappedGguf(const std::string& path, std::string_view who);
};

// Whether the path is a file, not a folder. A model that is a file must be GGUF.
bool is_gguf_file(const std::string& path);

}  // namespace tg::io
