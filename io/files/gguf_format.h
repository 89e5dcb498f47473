// GGUF, llama.cpp's files: keys with typed values, and named tensors; and GgufStart, which writes what a new
// file has before its data. gguf_metadata.h says what the keys mean, tensor_names.h what the tensors are.
//
//   "GGUF" · u32 version · i64 tensors · i64 keys · keys · tensors · zeros up to the alignment · data
//
// Little-endian. A string is a u64 length and its bytes; a key is a string, an i32 type, a value; an array an
// i32 type, a u64 count, values; a tensor a string, u32 dimensions, i64 sizes (the fastest first), an i32
// type and a u64 offset from the start of the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg::io {

inline constexpr std::string_view gguf_magic = "GGUF";
// Of the data and of each tensor in it; a file may have another one in this key.
inline constexpr std::uint64_t gguf_alignment = 32;
inline constexpr std::uint64_t max_gguf_alignment = 1 << 16;
inline constexpr const char* gguf_alignment_key = "general.alignment";

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

// Bytes of a number of this kind; 0 for strings and arrays.
std::uint64_t size_of(GgufKind kind);

// Of tensors; others are refused.
enum class GgufType : std::uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };
std::string_view name_of(GgufType type);  // "Q8_0"
// Of all types that ggml has, for messages; "" for numbers that are none.
std::string_view ggml_type_name(std::uint32_t type);
// Numbers that are stored together, and their bytes.
std::size_t gguf_block(GgufType type);
std::size_t gguf_block_bytes(GgufType type);
std::uint64_t gguf_bytes(GgufType type, const std::vector<std::int64_t>& shape);

// So many bytes with the zeros after them.
std::uint64_t gguf_padded(std::uint64_t bytes, std::uint64_t alignment = gguf_alignment);
std::string gguf_padding(std::uint64_t bytes);  // these zeros

// The string that begins there in a file that was checked.
std::string_view gguf_string_at(std::string_view file, std::uint64_t at);

// ---- Q8_0, ggml's format of 8 bits: blocks of 32 numbers of a row, each with a scale d in f16 and 32 whole
// numbers q from −127 to 127; a number is d·q.

inline constexpr std::size_t q8_0_numbers = 32, q8_0_bytes = 34;  // of a block

// d = max|x| / 127 and q = x·(1/d), rounded half away from zero, with the d in f32; then d is rounded to f16.
// The bits are those of ggml. Numbers are finite, as many as whole blocks; `to` has the bytes of these.
// False, and then `to` is undefined, if a d is too large for f16.
bool to_q8_0(std::span<const float> from, std::span<std::byte> to);
// The inverse, in f32, which it needs.
void from_q8_0(std::span<const std::byte> from, std::span<float> to);

// ---- Writing: what a new file has before its data

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

  std::string bytes() const;  // with the zeros after it; gguf_padding() follows each tensor's bytes

 private:
  void begin(const std::string& key, GgufKind kind);
  std::string keys_, tensors_;
  std::int64_t key_count_ = 0, tensor_count_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace tg::io
