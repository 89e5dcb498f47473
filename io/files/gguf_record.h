// The pieces of a GGUF file, each checked by itself: BoundedReader reads numbers, strings and counts, none of
// which reaches beyond the end of the file. Functions read the value of a key and the record of a tensor.
#pragma once

#include <bit>
#include <cstring>

#include <tilegrad/core/base/error.h>
#include "io/files/gguf_format.h"

namespace tg::io {

static_assert(std::endian::native == std::endian::little);

// Reads from the front, and knows what is left. Throws FormatError, beginning with `where`, for a file that
// ends before what is asked for.
class BoundedReader {
 public:
  BoundedReader(std::string_view file, std::uint64_t at, const std::string& where)
      : file_(file), at_(at), where_(where) {}

  std::uint64_t at() const { return at_; }
  std::uint64_t left() const { return file_.size() - at_; }
  // "the number of keys", for messages.
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
  // A count of records, of which the smallest has so many bytes.
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
