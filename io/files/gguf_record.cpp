#include "io/files/gguf_record.h"

#include <tilegrad/io/files/json.h>
#include "core/base/messages.h"
#include "io/files/utf8.h"

namespace tg::io {

namespace {

constexpr std::uint64_t max_tensor_name = 63, max_dimensions = 4;

bool is_readable(std::uint32_t type) {
  return type == 0 || type == 1 || type == 8 || type == 30;
}

void check_boolean(const BoundedReader& reader, std::string_view bytes, const std::string& what) {
  for (const char c : bytes)
    if (c != 0 && c != 1)
      reader.fail(what + " has a bool of " + std::to_string(static_cast<unsigned char>(c)) +
                  ", expected 0 or 1");
}

}  // namespace

std::string gguf_shown(std::string_view text) {
  return json_excerpt(text);
}

std::string gguf_named(const char* kind, std::string_view name) {
  return std::string(kind) + " " + gguf_shown(name);
}

void check_gguf_text(const BoundedReader& reader, std::string_view text, const std::string& what) {
  if (utf8_valid_bytes(text) != text.size()) reader.fail(what + " is not UTF-8");
  if (has_control_characters(text)) reader.fail(what + " has control characters");
}

void skip_gguf_value(BoundedReader& reader, GgufKind kind, const std::string& what) {
  if (kind == GgufKind::string) {
    reader.string(what);
    return;
  }
  if (kind != GgufKind::array) {
    const std::string_view bytes = reader.bytes(size_of(kind), what);
    if (kind == GgufKind::boolean) check_boolean(reader, bytes, what);
    return;
  }
  const GgufKind item = reader.kind(what);
  if (item == GgufKind::array) reader.fail(what + " is an array of arrays");
  const auto n = reader.number<std::uint64_t>(what);
  const std::uint64_t smallest = item == GgufKind::string ? 8 : size_of(item);
  if (n > reader.left() / smallest)
    reader.fail(what + " has " + std::to_string(n) + " items, for which the " +
                std::to_string(reader.left()) + " bytes that are left are too few");
  if (item == GgufKind::string) {
    for (std::uint64_t i = 0; i < n; ++i) reader.string(what);
    return;
  }
  const std::string_view bytes = reader.bytes(n * smallest, what);
  if (item == GgufKind::boolean) check_boolean(reader, bytes, what);
}

GgufRecord read_gguf_record(BoundedReader& reader) {
  GgufRecord r{.name = reader.string("the name of a tensor")};
  const std::string what = gguf_named("tensor", r.name);
  if (r.name.size() > max_tensor_name)
    reader.fail(what + " has a name of " + std::to_string(r.name.size()) + " bytes, expected at most 63");
  check_gguf_text(reader, r.name, what);
  const auto dimensions = reader.number<std::uint32_t>(what);
  if (dimensions < 1 || dimensions > max_dimensions)
    reader.fail(what + " has " + std::to_string(dimensions) + " dimensions, expected 1 to 4");
  std::int64_t numbers = 1;
  r.shape.resize(dimensions);
  for (std::uint32_t i = dimensions; i-- > 0;) {
    const auto n = reader.number<std::int64_t>(what);
    if (n < 1) reader.fail(what + " has a size of " + std::to_string(n) + ", expected 1 or more");
    if (__builtin_mul_overflow(numbers, n, &numbers))
      reader.fail(what + " has sizes whose product overflows");
    r.shape[i] = n;
  }
  const auto type = reader.number<std::uint32_t>(what);
  if (!is_readable(type)) {
    const std::string_view name = ggml_type_name(type);
    reader.fail(what + " is of type " + (name.empty() ? std::to_string(type) : std::string(name)) +
                ", expected F32, F16, BF16 or Q8_0");
  }
  r.type = static_cast<GgufType>(type);
  const auto block = static_cast<std::int64_t>(gguf_block(r.type));
  if (r.shape.back() % block != 0)
    reader.fail(what + " has rows of " + std::to_string(r.shape.back()) +
                " numbers, expected a multiple of " + std::to_string(block) + " for " +
                std::string(name_of(r.type)));
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(numbers / block),
                             std::uint64_t{gguf_block_bytes(r.type)}, &r.bytes) ||
      r.bytes > std::uint64_t(INT64_MAX) - max_gguf_alignment)
    reader.fail(what + " has sizes whose product overflows");
  r.offset = reader.number<std::uint64_t>(what);
  return r;
}

}  // namespace tg::io
