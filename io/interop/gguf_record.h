// What a key or a tensor is in a GGUF file, checked by itself.
#pragma once

#include "io/interop/bounded_reader.h"

namespace tg::io {

// The name of a key or a tensor for messages, which may be any bytes: key "general.name".
std::string gguf_named(const char* kind, std::string_view name);
std::string gguf_shown(std::string_view text);  // quoted and shortened

// Throws FormatError for a text that is not UTF-8.
void check_gguf_text(const BoundedReader& reader, std::string_view text, const std::string& what);

// Goes past a value, which is checked. What a string holds is checked where it is read as one: bytes of
// tokens need not be UTF-8.
void skip_gguf_value(BoundedReader& reader, GgufKind kind, const std::string& what);

// What a tensor's record says, as far as it makes sense by itself.
struct GgufRecord {
  std::string_view name;
  std::vector<std::int64_t> shape = {};
  GgufType type = GgufType::f32;
  std::uint64_t offset = 0, bytes = 0;
};
GgufRecord read_gguf_record(BoundedReader& reader);

}  // namespace tg::io
