// GgufFile: a GGUF file, version 3 or 2: typed metadata, and tensors.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/core/base/dtype.h>
#include "io/files/mapped_file.h"

namespace tg::io {

// Types of metadata, with the numbers that the file has for them.
enum class GgufType : std::uint32_t {
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  f32,
  boolean,
  string,
  array,
  u64,
  i64,
  f64
};
std::string_view name_of(GgufType type);
std::size_t size_of(GgufType type);  // of a number; 0 of a string or an array

// How a tensor's values are stored. Of q8_0, 32 values of a row are a block (q8_0.h).
enum class GgufEncoding : std::uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };
std::string_view name_of(GgufEncoding encoding);
// The bytes of a row of so many values; nothing if that is no number of blocks, or beyond 64 bits.
std::optional<std::uint64_t> row_bytes(GgufEncoding encoding, std::uint64_t values);

constexpr std::uint64_t gguf_alignment = 32;  // of tensors, where a file says nothing else

class GgufFile {
 public:
  // Maps the file. Throws Error for a file that cannot be read, and FormatError, in one line with file, key
  // and value, for one that breaks a rule: every number is checked before it is used, and nothing of a size
  // that the file states is allocated.
  explicit GgufFile(const std::string& path, std::string_view who);
  // The same of bytes that outlive it; messages begin with `where`.
  GgufFile(std::string_view bytes, std::string where);

  struct Tensor {
    GgufEncoding encoding = GgufEncoding::f32;
    std::vector<std::int64_t> shape;  // the last one is contiguous; the file has them in the other order
    std::string_view bytes;
  };
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const std::string& where() const { return where_; }

  bool has(const std::string& key) const { return values_.contains(key); }
  // FormatError, "<where>: key is …, expected …", if it is missing or of another type. Whole numbers may be
  // stored in any type of them, real ones as f32 or f64.
  std::int64_t integer(const std::string& key) const;
  double number(const std::string& key) const;
  bool boolean(const std::string& key) const;
  std::string string(const std::string& key) const;
  std::int64_t integer(const std::string& key, std::int64_t otherwise) const;
  double number(const std::string& key, double otherwise) const;
  bool boolean(const std::string& key, bool otherwise) const;
  std::string string(const std::string& key, const std::string& otherwise) const;
  std::vector<std::string_view> strings(const std::string& key) const;  // UTF-8, in the file
  std::vector<std::int64_t> integers(const std::string& key) const;     // of an array
  [[noreturn]] void refuse(const std::string& key, const std::string& expected) const;

  // Pages that are not needed any more leave this process's memory.
  void release(std::string_view bytes) const;

 private:
  struct Value {
    GgufType type = GgufType::u32, element = GgufType::u32;  // element: of an array
    std::uint64_t count = 1;                                 // of elements
    std::string_view bytes;  // of the number, of the string, or of all elements of an array
  };
  void parse(std::string_view bytes);
  const Value& value(const std::string& key, const char* expected) const;
  std::string text(const Value& value) const;

  std::string where_;
  std::optional<MappedFile> file_;
  std::map<std::string, Value> values_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace tg::io
