// GGUF, llama.cpp's files: keys with typed values, and named tensors. What they mean is said in
// gguf_config.h, gguf_tokenizer.h and gguf_names.h.
//
//   "GGUF" · u32 version · i64 tensors · i64 keys · keys · tensors · zeros up to the alignment · data
//
// Little-endian. A string is a u64 length and its bytes; a key is a string, an i32 type, a value; an array an
// i32 type, a u64 count, values; a tensor a string, u32 dimensions, i64 sizes (the fastest first), an i32
// type and a u64 offset from the start of the data.
#pragma once

#include <cstddef>
#include <cstdint>
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

}  // namespace tg::io
