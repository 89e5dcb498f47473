// GGUF, llama.cpp's files: keys with typed values, and named tensors. What they mean is said in gguf_model.h.
//
//   "GGUF" · u32 version · i64 tensors · i64 keys · keys · tensors · zeros up to the alignment · data
//
// Little-endian. A string is a u64 length and its bytes; a key is a string, an i32 type, a value; an array an
// i32 type, a u64 count, values; a tensor a string, u32 dimensions, i64 sizes (the fastest first), an i32
// type and a u64 offset from the start of the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/io/files/mapped_file.h>

namespace tg::io {

enum class GgufKind : std::uint32_t {
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

// Of tensors; others are refused.
enum class GgufType : std::uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };
std::string_view name_of(GgufType type);  // "Q8_0"
// Numbers that are stored together, and their bytes.
std::size_t gguf_block(GgufType type);
std::size_t gguf_block_bytes(GgufType type);

struct GgufTensor {
  std::string_view name;
  GgufType type = GgufType::f32;
  std::vector<std::int64_t> shape;  // row-major, as everywhere here: the slowest first
  std::string_view bytes;
};

// A file that was checked. It keeps 8 bytes for each key and tensor, and refers to the bytes, which must
// outlive it.
class Gguf {
 public:
  // Versions 2 and 3. Throws FormatError, beginning with `where`, naming key or tensor and the broken rule,
  // for a file that is not consistent, and for tensors of other types than GgufType's. Values of tensors are
  // not looked at.
  Gguf(std::string_view file, std::string where);

  const std::string& where() const { return where_; }
  std::vector<std::string> keys() const;    // in order of their names
  std::vector<GgufTensor> tensors() const;  // in order of their names
  std::optional<GgufTensor> tensor(std::string_view name) const;
  std::size_t tensor_count() const { return tensors_.size(); }

  bool has(std::string_view key) const { return find(key).has_value(); }
  // Throws FormatError for a key that is not there, or of another kind. Whole numbers are of any width.
  std::int64_t integer(std::string_view key) const;
  double number(std::string_view key) const;  // f32, f64 or a whole one
  bool boolean(std::string_view key) const;
  std::string string(std::string_view key) const;
  // The items of an array.
  std::vector<std::string> strings(std::string_view key) const;
  std::vector<std::int64_t> integers(std::string_view key) const;  // booleans count as 0 and 1
  std::vector<double> numbers(std::string_view key) const;
  std::uint64_t count(std::string_view key) const;
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
  };
  std::optional<Value> find(std::string_view key) const;
  Value value(std::string_view key, const char* expected) const;

  std::string_view file_;
  std::string where_;
  std::uint64_t data_ = 0;                     // where the tensors' data begin
  std::vector<std::uint64_t> keys_, tensors_;  // where they begin, in order of their names
};

struct MappedGguf {
  MappedFile file;
  Gguf gguf;
  MappedGguf(const std::string& path, std::string_view who);
};

// Whether the path is that of a file, which as a model can only be GGUF, and not of a folder.
bool is_gguf_file(const std::string& path);

// What comes before the data of a new file.
class GgufStart {
 public:
  void add(const std::string& key, std::uint32_t value);
  void add(const std::string& key, float value);
  void add(const std::string& key, bool value);
  void add(const std::string& key, const std::string& value);
  void add(const std::string& key, const std::vector<std::string>& items);
  void add(const std::string& key, const std::vector<std::int32_t>& items);
  void add(const std::string& key, const std::vector<float>& items);
  void add_booleans(const std::string& key, const std::vector<bool>& items);
  void add(const std::string& key, const char* value) { add(key, std::string(value)); }
  // In the order of their data. The last size is a multiple of gguf_block().
  void add_tensor(const std::string& name, GgufType type, const std::vector<std::int64_t>& shape);

  std::string bytes() const;  // with the zeros after it
  // After the bytes of each tensor come zeros up to a multiple of this.
  static constexpr std::uint64_t alignment = 32;

 private:
  void begin(const std::string& key, GgufKind kind);
  std::string keys_, tensors_;
  std::int64_t key_count_ = 0, tensor_count_ = 0;
  std::uint64_t offset_ = 0;
};

std::uint64_t gguf_bytes(GgufType type, const std::vector<std::int64_t>& shape);
// Zeros up to a multiple of the alignment after so many bytes.
std::string gguf_padding(std::uint64_t bytes);

}  // namespace tg::io
