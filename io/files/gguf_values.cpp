// Reads the values of keys in a GGUF file.
#include <cmath>
#include <cstring>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "io/files/gguf.h"
#include "io/files/gguf_record.h"
#include "io/files/utf8.h"

namespace tg::io {

namespace {

bool is_whole(GgufKind kind) {
  return kind != GgufKind::f32 && kind != GgufKind::f64 && kind != GgufKind::boolean &&
         kind != GgufKind::string && kind != GgufKind::array;
}
bool is_real(GgufKind kind) {
  return kind == GgufKind::f32 || kind == GgufKind::f64;
}

template <class T>
T loaded(const char* from) {
  T x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

// A u64 of 2^63 or more becomes negative, and no key may be negative.
std::int64_t whole_at(const char* from, GgufKind kind) {
  const bool is_signed = kind == GgufKind::i8 || kind == GgufKind::i16 || kind == GgufKind::i32;
  std::uint64_t bits = 0;
  std::memcpy(&bits, from, size_of(kind));
  const auto above = static_cast<int>(64 - 8 * size_of(kind));
  return is_signed ? static_cast<std::int64_t>(bits << above) >> above : static_cast<std::int64_t>(bits);
}

double real_at(const char* from, GgufKind kind) {
  if (kind == GgufKind::f32) return static_cast<double>(loaded<float>(from));
  if (kind == GgufKind::f64) return loaded<double>(from);
  return static_cast<double>(whole_at(from, kind));
}

std::string real_text(double x) {
  return std::isfinite(x) ? json_number(x) : "not finite";
}

}  // namespace

Gguf::Value Gguf::value(std::string_view key, const char* expected) const {
  const auto found = find(key);
  if (!found) throw FormatError(where_ + ": has no key " + std::string(key) + ", expected " + expected);
  is_read_[found->index] = true;
  return *found;
}

std::string Gguf::text(std::string_view key) const {
  const auto v = find(key);
  if (!v) return "not there";
  if (v->kind == GgufKind::array) return "an array of " + std::to_string(v->count);
  if (v->kind == GgufKind::string) {
    const std::string_view text = gguf_string_at(v->bytes, 0);
    return utf8_valid_bytes(text) == text.size() ? gguf_shown(text) : "not UTF-8";
  }
  if (v->kind == GgufKind::boolean) return v->bytes[0] != 0 ? "true" : "false";
  return is_real(v->kind) ? real_text(real_at(v->bytes.data(), v->kind))
                          : std::to_string(whole_at(v->bytes.data(), v->kind));
}

void Gguf::refuse(std::string_view key, const std::string& expected) const {
  throw FormatError(where_ + ": " + std::string(key) + " is " + text(key) + ", expected " + expected);
}

std::int64_t Gguf::integer(std::string_view key) const {
  const Value v = value(key, "a whole number");
  if (!is_whole(v.kind)) refuse(key, "a whole number");
  return whole_at(v.bytes.data(), v.kind);
}

double Gguf::number(std::string_view key) const {
  const Value v = value(key, "a number");
  if (!is_whole(v.kind) && !is_real(v.kind)) refuse(key, "a number");
  const double x = real_at(v.bytes.data(), v.kind);
  if (!std::isfinite(x)) refuse(key, "a finite number");
  return x;
}

bool Gguf::boolean(std::string_view key) const {
  const Value v = value(key, "true or false");
  if (v.kind != GgufKind::boolean) refuse(key, "true or false");
  return v.bytes[0] != 0;
}

std::string Gguf::string(std::string_view key) const {
  const Value v = value(key, "a text");
  if (v.kind != GgufKind::string) refuse(key, "a text");
  const std::string_view text = gguf_string_at(v.bytes, 0);
  if (utf8_valid_bytes(text) != text.size()) refuse(key, "a text in UTF-8");
  return std::string(text);
}

bool Gguf::is_array(std::string_view key) const {
  const auto v = find(key);
  return v && v->kind == GgufKind::array;
}

std::uint64_t Gguf::count(std::string_view key) const {
  const Value v = value(key, "an array");
  if (v.kind != GgufKind::array) refuse(key, "an array");
  return v.count;
}

void Gguf::each_string(std::string_view key, const std::function<void(std::string_view)>& f) const {
  const Value v = value(key, "an array of strings");
  if (v.kind != GgufKind::array || v.item != GgufKind::string) refuse(key, "an array of strings");
  std::string_view rest = v.bytes;
  for (std::uint64_t i = 0; i < v.count; ++i) {
    const std::string_view text = gguf_string_at(rest, 0);
    rest.remove_prefix(sizeof(std::uint64_t) + text.size());
    f(text);
  }
}

void Gguf::each_integer(std::string_view key, const std::function<void(std::int64_t)>& f) const {
  const Value v = value(key, "an array of whole numbers");
  if (v.kind != GgufKind::array || (!is_whole(v.item) && v.item != GgufKind::boolean))
    refuse(key, "an array of whole numbers");
  for (std::uint64_t i = 0; i < v.count; ++i) f(whole_at(v.bytes.data() + i * size_of(v.item), v.item));
}

void Gguf::each_number(std::string_view key, const std::function<void(double)>& f) const {
  const Value v = value(key, "an array of numbers");
  if (v.kind != GgufKind::array || (!is_whole(v.item) && !is_real(v.item)))
    refuse(key, "an array of numbers");
  for (std::uint64_t i = 0; i < v.count; ++i) f(real_at(v.bytes.data() + i * size_of(v.item), v.item));
}

std::int64_t Gguf::integer(std::string_view key, std::int64_t otherwise) const {
  return has(key) ? integer(key) : otherwise;
}
double Gguf::number(std::string_view key, double otherwise) const {
  return has(key) ? number(key) : otherwise;
}
bool Gguf::boolean(std::string_view key, bool otherwise) const {
  return has(key) ? boolean(key) : otherwise;
}
std::string Gguf::string(std::string_view key, const std::string& otherwise) const {
  return has(key) ? string(key) : otherwise;
}

}  // namespace tg::io
