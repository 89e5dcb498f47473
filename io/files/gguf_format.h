// GGUF, the file format of llama.cpp: keys with typed values, and named tensors. GgufStart writes the part of
// a new file before its data. The meaning of the keys is defined in gguf_metadata.h, the meaning of the
// tensors in tensor_names.h.
//
//    "GGUF" · u32 version · i64 tensors · i64 keys · keys · tensors · zeros up to the alignment · data
//
// All numbers are little-endian.
// - A string is a u64 length and its bytes.
// - A key is a string, an i32 type and a value.
// - An array is an i32 type, a u64 count and values.
// - A tensor is a string, a u32 number of dimensions, i64 sizes (fastest first), an i32 type and a u64 offset
//   from the start of the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tg::io {

inline constexpr std::string_view gguf_magic = "GGUF";
// Default alignment of the data and of each tensor. The key general.alignment of a file can specify a
// different one.
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

// Returns the size of a number of this kind in bytes; 0 for strings and arrays.
std::uint64_t size_of(GgufKind kind);

// The supported tensor types; others are rejected.
enum class GgufType : std::uint32_t { f32 = 0, f16 = 1, q8_0 = 8, bf16 = 30 };
std::string_view name_of(GgufType type);  // "Q8_0"
// Returns the name of any ggml type, for messages; "" for an unknown number.
std::string_view ggml_type_name(std::uint32_t type);
// gguf_block(): the number of elements that are stored together as a block.
std::size_t gguf_block(GgufType type);
std::size_t gguf_block_bytes(GgufType type);
std::uint64_t gguf_bytes(GgufType type, const std::vector<std::int64_t>& shape);

// Rounds a number of bytes up to a multiple of the alignment.
std::uint64_t gguf_padded(std::uint64_t bytes, std::uint64_t alignment = gguf_alignment);
std::string gguf_padding(std::uint64_t bytes);  // the padding after this number of bytes

// Returns the string at this offset of a checked file.
std::string_view gguf_string_at(std::string_view file, std::uint64_t at);

// ---- Q8_0, ggml's 8-bit format: blocks of 32 elements of a row, each with a scale d in f16 and 32 integers
// q from −127 to 127. An element is d·q.

inline constexpr std::size_t q8_0_numbers = 32, q8_0_bytes = 34;  // elements and bytes of a block

// Converts rows to Q8_0. Computes d = max|x| / 127 and q = x·(1/d) with d in f32. Rounds q to the nearest
// integer, half away from zero, then rounds d to f16. The result is bitwise identical to ggml's. Elements
// must be finite and fill complete blocks. `to` must have the size of these blocks. Returns false if a d is
// too large for f16; `to` is then undefined.
bool to_q8_0(std::span<const float> from, std::span<std::byte> to);
// Converts rows from Q8_0. This is the inverse of to_q8_0().
void from_q8_0(std::span<const std::byte> from, std::span<float> to);

// ---- Writing: the part of a new file before its data

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
  // Adds a tensor. Tensors are added in the order of their data. The last size must be a multiple of
  // gguf_block().
  void add_tensor(const std::string& name, GgufType type, const std::vector<std::int64_t>& shape);

  std::string bytes() const;  // including padding; gguf_padding() must follow each tensor's bytes

 private:
  void begin(const std::string& key, GgufKind kind);
  std::string keys_, tensors_;
  std::int64_t key_count_ = 0, tensor_count_ = 0;
  std::uint64_t offset_ = 0;
};

}  // namespace tg::io
