#include "io/files/gguf_format.h"

#include <cstring>

namespace tg::io {

std::uint64_t size_of(GgufKind kind) {
  constexpr std::uint64_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return sizes[static_cast<std::size_t>(kind)];
}

std::string_view ggml_type_name(std::uint32_t type) {
  constexpr std::string_view names[] = {
      "F32",    "F16",   "Q4_0",  "Q4_1",   "",      "",      "Q5_0",    "Q5_1",   "Q8_0",    "Q8_1",
      "Q2_K",   "Q3_K",  "Q4_K",  "Q5_K",   "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
      "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",     "I64",    "F64",     "IQ1_M",
      "BF16",   "",      "",      "",       "TQ1_0", "TQ2_0", "",        "",       "",        "MXFP4"};
  return type < std::size(names) ? names[type] : std::string_view{};
}

std::string_view name_of(GgufType type) {
  return ggml_type_name(static_cast<std::uint32_t>(type));
}

std::size_t gguf_block(GgufType type) {
  return type == GgufType::q8_0 ? 32 : 1;
}

std::size_t gguf_block_bytes(GgufType type) {
  return type == GgufType::q8_0 ? 34 : type == GgufType::f32 ? 4 : 2;
}

std::uint64_t gguf_bytes(GgufType type, const std::vector<std::int64_t>& shape) {
  std::uint64_t numbers = 1;
  for (const std::int64_t n : shape) numbers *= static_cast<std::uint64_t>(n);
  return numbers / gguf_block(type) * gguf_block_bytes(type);
}

std::uint64_t gguf_padded(std::uint64_t bytes, std::uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

std::string gguf_padding(std::uint64_t bytes) {
  return std::string(gguf_padded(bytes) - bytes, '\0');
}

std::string_view gguf_string_at(std::string_view file, std::uint64_t at) {
  std::uint64_t length;
  std::memcpy(&length, file.data() + at, sizeof length);
  return file.substr(at + sizeof length, length);
}

}  // namespace tg::io
