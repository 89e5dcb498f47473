#include "io/interop/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "io/files/utf8.h"
#include "io/interop/q8_0.h"

namespace tg::io {

static_assert(std::endian::native == std::endian::little, "GGUF's numbers are little-endian");

namespace {

constexpr std::string_view type_names[] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                           "bool", "string", "array", "u64", "i64", "f64"};
constexpr std::size_t type_sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
constexpr std::uint64_t most_alignment = 1 << 16, most_key = 65535, most_name = 63, most_dimensions = 4;
// The smallest metadata (length of a key, type, a byte), and the smallest entry of a tensor.
constexpr std::uint64_t least_value = 13, least_tensor = 8 + 4 + 8 + 4 + 8;

std::uint64_t padded(std::uint64_t n, std::uint64_t to) {
  return (n + to - 1) / to * to;
}

template <class T>
T number_at(std::string_view bytes) {
  T x;
  std::memcpy(&x, bytes.data(), sizeof x);
  return x;
}

// What is left of the file. Each read checks that it is there.
class Bytes {
 public:
  Bytes(std::string_view all, const std::string& where) : all_(all), where_(where) {}

  std::uint64_t left() const { return all_.size() - at_; }
  std::uint64_t at() const { return at_; }
  std::string_view take(std::uint64_t n, const std::string& what) {
    if (n > left())
      fail(what + " needs " + std::to_string(n) + " bytes, " + std::to_string(left()) + " are left");
    at_ += n;
    return all_.substr(at_ - n, n);
  }
  template <class T>
  T number(const std::string& what) {
    return number_at<T>(take(sizeof(T), what));
  }
  std::string_view string(const std::string& what, std::uint64_t most = ~std::uint64_t{0}) {
    const auto n = number<std::uint64_t>(what);
    if (n > most)
      fail(what + " has " + std::to_string(n) + " bytes, expected at most " + std::to_string(most));
    const std::string_view s = take(n, what);
    if (utf8_valid_bytes(s) != s.size()) fail(what + " is not UTF-8");
    return s;
  }
  // A number of records of at least so many bytes.
  std::uint64_t count(std::uint64_t least, const std::string& what) {
    const auto n = number<std::uint64_t>(what);
    if (n > left() / least) fail(what + " is " + std::to_string(n) + ", more than the file has room for");
    return n;
  }
  [[noreturn]] void fail(const std::string& what) const { throw FormatError(where_ + ": " + what); }

 private:
  std::string_view all_;
  const std::string& where_;
  std::uint64_t at_ = 0;
};

GgufType take_type(Bytes& bytes, const std::string& what) {
  const auto n = bytes.number<std::uint32_t>(what + ": its type");
  if (n >= std::size(type_names))
    bytes.fail(what + ": its type is " + std::to_string(n) + ", expected 0 to 12");
  return static_cast<GgufType>(n);
}

void check_booleans(const Bytes& bytes, std::string_view values, const std::string& what) {
  for (const char c : values)
    if (c != 0 && c != 1)
      bytes.fail(what + " is a bool of " + std::to_string(static_cast<unsigned char>(c)) +
                 ", expected 0 or 1");
}

std::optional<GgufEncoding> encoding_of(std::uint32_t n) {
  for (const GgufEncoding e : {GgufEncoding::f32, GgufEncoding::f16, GgufEncoding::q8_0, GgufEncoding::bf16})
    if (static_cast<std::uint32_t>(e) == n) return e;
  return std::nullopt;
}

// The names of others, for messages.
std::string other_encoding(std::uint32_t n) {
  static constexpr const char* names[] = {"F32",  "F16",  "Q4_0", "Q4_1", "4",    "5",    "Q5_0", "Q5_1",
                                          "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"};
  return n < std::size(names) ? names[n] : "type " + std::to_string(n);
}

}  // namespace

std::string_view name_of(GgufType type) {
  return type_names[static_cast<std::size_t>(type)];
}

std::size_t size_of(GgufType type) {
  return type_sizes[static_cast<std::size_t>(type)];
}

std::string_view name_of(GgufEncoding encoding) {
  return encoding == GgufEncoding::f32    ? "f32"
         : encoding == GgufEncoding::f16  ? "f16"
         : encoding == GgufEncoding::bf16 ? "bf16"
                                          : "q8_0";
}

std::optional<std::uint64_t> row_bytes(GgufEncoding encoding, std::uint64_t values) {
  const std::uint64_t block = encoding == GgufEncoding::q8_0 ? q8_0::values : 1,
                      bytes = encoding == GgufEncoding::q8_0  ? sizeof(q8_0::Block)
                              : encoding == GgufEncoding::f32 ? 4
                                                              : 2;
  if (values % block != 0 || values / block > ~std::uint64_t{0} / bytes) return std::nullopt;
  return values / block * bytes;
}

GgufFile::GgufFile(const std::string& path, std::string_view who)
    : where_("[" + std::string(who) + "] " + path), file_(std::in_place, path, who) {
  parse(file_->bytes());
}

GgufFile::GgufFile(std::string_view bytes, std::string where) : where_(std::move(where)) {
  parse(bytes);
}

void GgufFile::parse(std::string_view all) {
  Bytes bytes(all, where_);
  if (bytes.take(4, "the magic number") != "GGUF") bytes.fail("it does not begin with \"GGUF\"");
  if (const auto version = bytes.number<std::uint32_t>("its version"); version != 2 && version != 3)
    bytes.fail("its version is " + std::to_string(version) + ", expected 2 or 3");
  const std::uint64_t tensors = bytes.count(least_tensor, "the number of tensors"),
                      keys = bytes.count(least_value, "the number of keys");
  for (std::uint64_t i = 0; i < keys; ++i) {
    const std::string key(bytes.string("key " + std::to_string(i), most_key));
    Value v{.type = take_type(bytes, key)};
    if (v.type == GgufType::array) {
      v.element = take_type(bytes, key);
      if (v.element == GgufType::array) bytes.fail(key + " is an array of arrays");
      const std::size_t each = size_of(v.element);
      v.count = bytes.count(each == 0 ? 8 : each, key + ": its length");
      const std::uint64_t begin = bytes.at();
      if (v.element == GgufType::string)
        for (std::uint64_t n = 0; n < v.count; ++n) bytes.string(key + "[" + std::to_string(n) + "]");
      else
        bytes.take(v.count * each, key);
      v.bytes = all.substr(begin, bytes.at() - begin);
    } else {
      v.bytes = v.type == GgufType::string ? bytes.string(key) : bytes.take(size_of(v.type), key);
    }
    if ((v.type == GgufType::array ? v.element : v.type) == GgufType::boolean)
      check_booleans(bytes, v.bytes, key);
    if (!values_.emplace(key, v).second) bytes.fail("key " + key + " is there twice");
  }
  const std::int64_t stated = integer("general.alignment", gguf_alignment);
  if (stated < 1 || !std::has_single_bit(static_cast<std::uint64_t>(stated)) ||
      static_cast<std::uint64_t>(stated) > most_alignment)
    refuse("general.alignment", "a power of two up to 65536");
  const auto alignment = static_cast<std::uint64_t>(stated);

  std::vector<std::pair<Tensor*, std::uint64_t>> sizes;  // in the order of the file
  std::uint64_t end = 0;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    const std::string name(bytes.string("the name of tensor " + std::to_string(i), most_name));
    const auto dimensions = bytes.number<std::uint32_t>("tensor " + name);
    if (dimensions < 1 || dimensions > most_dimensions)
      bytes.fail("tensor " + name + " has " + std::to_string(dimensions) + " dimensions, expected 1 to 4");
    Tensor t;
    std::uint64_t rows = 1;
    for (std::uint32_t d = 0; d < dimensions; ++d) {
      const auto n = bytes.number<std::int64_t>("tensor " + name);
      if (n < 1) bytes.fail("tensor " + name + " has a dimension of " + std::to_string(n));
      t.shape.insert(t.shape.begin(), n);
      if (d > 0 && __builtin_mul_overflow(rows, static_cast<std::uint64_t>(n), &rows))
        bytes.fail("the size of tensor " + name + " is beyond 64 bits");
    }
    const auto type = bytes.number<std::uint32_t>("tensor " + name);
    const auto encoding = encoding_of(type);
    if (!encoding)
      bytes.fail("tensor " + name + " is in " + other_encoding(type) + ", expected F32, F16, BF16 or Q8_0");
    t.encoding = *encoding;
    const auto row = row_bytes(*encoding, static_cast<std::uint64_t>(t.shape.back()));
    std::uint64_t size = 0;
    if (!row)
      bytes.fail("tensor " + name + " has rows of " + std::to_string(t.shape.back()) +
                 " values in Q8_0, expected a multiple of 32");
    // Shapes are signed elsewhere, and padding must not overflow either.
    if (__builtin_mul_overflow(*row, rows, &size) || size > (~std::uint64_t{0} >> 1) - most_alignment)
      bytes.fail("the size of tensor " + name + " is beyond 63 bits");
    const auto offset = bytes.number<std::uint64_t>("tensor " + name);
    if (offset != end)
      bytes.fail("tensor " + name + " begins at " + std::to_string(offset) + ", expected " +
                 std::to_string(end));
    if (__builtin_add_overflow(end, padded(size, alignment), &end) || end > all.size())
      bytes.fail("tensor " + name + " of " + std::to_string(size) + " bytes ends beyond the file");
    const auto [place, is_new] = tensors_.emplace(name, std::move(t));
    if (!is_new) bytes.fail("tensor " + name + " is there twice");
    sizes.emplace_back(&place->second, size);
  }
  const std::uint64_t data = padded(bytes.at(), alignment);
  std::uint64_t at = data;
  for (const auto& [tensor, size] : sizes) {
    if (at > all.size() || size > all.size() - at) bytes.fail("it ends within its tensors");
    tensor->bytes = all.substr(at, size);
    at += padded(size, alignment);
  }
}

std::string GgufFile::text(const Value& v) const {
  if (v.type == GgufType::string) return json_string(std::string(v.bytes.substr(0, 60)));
  return "a value of type " + std::string(name_of(v.type)) +
         (v.type == GgufType::array ? " of " + std::string(name_of(v.element)) : "");
}

void GgufFile::refuse(const std::string& key, const std::string& expected) const {
  const auto found = values_.find(key);
  if (found == values_.end()) throw FormatError(where_ + ": has no " + key + ", expected " + expected);
  const Value& v = found->second;
  std::string is;
  if (v.type == GgufType::f32 || v.type == GgufType::f64)
    is = std::to_string(number(key));
  else if (v.type == GgufType::boolean)
    is = v.bytes[0] != 0 ? "true" : "false";
  else if (v.type == GgufType::string || v.type == GgufType::array)
    is = text(v);
  else
    is = std::to_string(integer(key));
  throw FormatError(where_ + ": " + key + " is " + is + ", expected " + expected);
}

const GgufFile::Value& GgufFile::value(const std::string& key, const char* expected) const {
  const auto found = values_.find(key);
  if (found == values_.end()) throw FormatError(where_ + ": has no " + key + ", expected " + expected);
  return found->second;
}

namespace {

// Nothing if the type is not one of whole numbers, or the number is beyond 63 bits.
std::optional<std::int64_t> whole_number(GgufType type, std::string_view bytes) {
  switch (type) {
    case GgufType::u8:
      return number_at<std::uint8_t>(bytes);
    case GgufType::i8:
      return number_at<std::int8_t>(bytes);
    case GgufType::u16:
      return number_at<std::uint16_t>(bytes);
    case GgufType::i16:
      return number_at<std::int16_t>(bytes);
    case GgufType::u32:
      return number_at<std::uint32_t>(bytes);
    case GgufType::i32:
      return number_at<std::int32_t>(bytes);
    case GgufType::i64:
      return number_at<std::int64_t>(bytes);
    case GgufType::u64:
      if (const auto n = number_at<std::uint64_t>(bytes); n <= INT64_MAX) return static_cast<std::int64_t>(n);
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::int64_t GgufFile::integer(const std::string& key) const {
  const Value& v = value(key, "a whole number");
  if (const auto n = whole_number(v.type, v.bytes)) return *n;
  throw FormatError(where_ + ": " + key + " is " + text(v) + ", expected a whole number below 2^63");
}

double GgufFile::number(const std::string& key) const {
  const Value& v = value(key, "a number");
  if (v.type != GgufType::f32 && v.type != GgufType::f64) return static_cast<double>(integer(key));
  const double x = v.type == GgufType::f32 ? number_at<float>(v.bytes) : number_at<double>(v.bytes);
  if (!std::isfinite(x)) throw FormatError(where_ + ": " + key + " is not finite");
  return x;
}

bool GgufFile::boolean(const std::string& key) const {
  if (value(key, "a bool").type != GgufType::boolean) refuse(key, "a bool");
  return values_.at(key).bytes[0] != 0;
}

std::string GgufFile::string(const std::string& key) const {
  if (value(key, "a string").type != GgufType::string) refuse(key, "a string");
  return std::string(values_.at(key).bytes);
}

std::vector<std::string_view> GgufFile::strings(const std::string& key) const {
  const Value& v = value(key, "an array of strings");
  if (v.type != GgufType::array || v.element != GgufType::string) refuse(key, "an array of strings");
  std::vector<std::string_view> all(v.count);
  std::size_t at = 0;
  for (std::string_view& s : all) {
    const auto n = number_at<std::uint64_t>(v.bytes.substr(at));
    s = v.bytes.substr(at + 8, n), at += 8 + n;
  }
  return all;
}

std::vector<std::int64_t> GgufFile::integers(const std::string& key) const {
  const Value& v = value(key, "an array of whole numbers");
  const std::size_t each = size_of(v.element);
  if (v.type != GgufType::array || !whole_number(v.element, std::string(8, '\0')))
    refuse(key, "an array of whole numbers");
  std::vector<std::int64_t> all;
  for (std::uint64_t i = 0; i < v.count; ++i) {
    const auto n = whole_number(v.element, v.bytes.substr(i * each));
    if (!n) refuse(key, "whole numbers below 2^63");
    all.push_back(*n);
  }
  return all;
}

std::int64_t GgufFile::integer(const std::string& key, std::int64_t otherwise) const {
  return has(key) ? integer(key) : otherwise;
}
double GgufFile::number(const std::string& key, double otherwise) const {
  return has(key) ? number(key) : otherwise;
}
bool GgufFile::boolean(const std::string& key, bool otherwise) const {
  return has(key) ? boolean(key) : otherwise;
}
std::string GgufFile::string(const std::string& key, const std::string& otherwise) const {
  return has(key) ? string(key) : otherwise;
}

void GgufFile::release(std::string_view bytes) const {
  if (file_) file_->release(static_cast<std::size_t>(bytes.data() - file_->bytes().data()), bytes.size());
}

}  // namespace tg::io
