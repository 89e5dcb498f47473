// Reads and checks the parts of a GGUF file. BoundedReader reads numbers, strings and counts and never reads
// beyond the end of the file. Functions read the value of a key and the record of a tensor.
#pragma once

#include <bit>
#include <cstring>

#include <tilegrad/core/base/error.h>
#include "io/files/gguf_format.h"

namespace tg::io {

static_assert(std::endian::native == std::endian::little);

// Reads from the front and tracks the remaining bytes. Throws FormatError if the file ends too early.
// Messages begin with `where`.
class BoundedReader {
 public:
  BoundedReader(std::string_view file, std::uint64_t at, const std::string& where)
      : file_(file), at_(at), where_(where) {}

  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return file_.size() - at_; }
  // Reads a number. `what` is its name for messages, such as "the number of keys".
  template <class T>
  T number(const std::string& what) {
    T x;
    std::memcpy(&x, bytes(sizeof x, what).data(), sizeof x);
    return x;
  }
  std::string_view bytes(std::uint64_t n, const std::string& what) {
    if (n > left())
      fail("it ends within " + what + ", which needs " + std::to_string(n) + " bytes of " +
           std::to_string(left()) + " that are left");
    const std::string_view piece = file_.substr(at_, n);
    at_ += n;
    return piece;
  }
  std::string_view string(const std::string& what) {
    const auto length = number<std::uint64_t>(what);
    return bytes(length, what);
  }
  GgufKind kind(const std::string& what) {
    const auto kind = number<std::uint32_t>(what);
    if (kind > static_cast<std::uint32_t>(GgufKind::f64))
      fail(what + " has type " + std::to_string(kind) + ", expected 0 to 12");
    return static_cast<GgufKind>(kind);
  }
  // Reads the number of records. Each record has at least `smallest` bytes.
  std::uint64_t count(const std::string& what, std::uint64_t smallest) {
    const auto n = number<std::int64_t>("the number of " + what);
    if (n < 0 || static_cast<std::uint64_t>(n) > left() / smallest)
      fail("it has " + std::to_string(n) + " " + what + ", for which the " + std::to_string(left()) +
           " bytes that are left are too few");
    return static_cast<std::uint64_t>(n);
  }
  [[noreturn]] void fail(const std::string& what) const { throw FormatError(where_ + ": " + what); }

 private:
  std::string_view file_;
  std::uint64_t at_;
  const std::string& where_;
};

// ---- Keys and tensors

// Returns the name of a key or a tensor for messages, such as key "general.name". The name may contain any
// bytes.
std::string gguf_named(const char* kind, std::string_view name);
std::string gguf_shown(std::string_view text);  // quoted and shortened

// Throws FormatError if a string is not UTF-8 or has control characters.
void check_gguf_text(const BoundedReader& reader, std::string_view text, const std::string& what);

// Skips a value and checks it. The content of a string is checked only when it is read, because the strings
// of tokens need not be UTF-8.
void skip_gguf_value(BoundedReader& reader, GgufKind kind, const std::string& what);

// The record of a tensor. It is checked as far as possible without the rest of the file.
struct GgufRecord {
  std::string_view name;
  std::vector<std::int64_t> shape = {};
  GgufType type = GgufType::f32;
  std::uint64_t offset = 0, bytes = 0;
};
GgufRecord read_gguf_record(BoundedReader& reader);

}  // namespace tg::io
