#include "io/interop/gguf.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/json.h>
#include "io/files/utf8.h"

namespace tg::io {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view magic = "GGUF";
constexpr std::uint64_t max_alignment = 1 << 16, max_key = 65535, max_name = 63, max_dimensions = 4;
constexpr const char* alignment_key = "general.alignment";

// Bytes of a number of this kind; 0 for strings and arrays.
std::uint64_t size_of_kind(GgufKind kind) {
  constexpr std::uint64_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return sizes[static_cast<std::size_t>(kind)];
}

// Types of tensors that ggml has, for messages; "" for numbers that are none.
std::string_view ggml_type_name(std::uint32_t type) {
  constexpr std::string_view names[] = {
      "F32",    "F16",   "Q4_0",  "Q4_1",   "",      "",      "Q5_0",    "Q5_1",   "Q8_0",    "Q8_1",
      "Q2_K",   "Q3_K",  "Q4_K",  "Q5_K",   "Q6_K",  "Q8_K",  "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
      "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8",    "I16",   "I32",     "I64",    "F64",     "IQ1_M",
      "BF16",   "",      "",      "",       "TQ1_0", "TQ2_0", "",        "",       "",        "MXFP4"};
  return type < std::size(names) ? names[type] : std::string_view{};
}

bool is_known(std::uint32_t type) {
  return type == 0 || type == 1 || type == 8 || type == 30;
}

// A name as messages show it.
std::string shown(std::string_view name) {
  return json_string(utf8_shortened(name, 80));
}

std::uint64_t padded(std::uint64_t n, std::uint64_t alignment) {
  return (n + alignment - 1) / alignment * alignment;
}

// Reads from the front, and knows what is left.
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

void check_text(const BoundedReader& reader, std::string_view text, const std::string& what) {
  if (utf8_valid_bytes(text) != text.size()) reader.fail(what + " is not UTF-8");
}

// Messages name a key, which is not known before it is read.
std::string named(const char* kind, std::string_view name) {
  return std::string(kind) + " " + shown(name);
}

void check_boolean(const BoundedReader& reader, std::string_view bytes, const std::string& what) {
  for (const char c : bytes)
    if (c != 0 && c != 1)
      reader.fail(what + " has a bool of " + std::to_string(static_cast<unsigned char>(c)) +
                  ", expected 0 or 1");
}

// A key's value, checked. What a string holds is checked where it is read as one: bytes of tokens need not be
// UTF-8.
void skip_value(BoundedReader& reader, GgufKind kind, const std::string& what) {
  if (kind == GgufKind::string) {
    reader.string(what);
    return;
  }
  if (kind != GgufKind::array) {
    const std::string_view bytes = reader.bytes(size_of_kind(kind), what);
    if (kind == GgufKind::boolean) check_boolean(reader, bytes, what);
    return;
  }
  const GgufKind item = reader.kind(what);
  if (item == GgufKind::array) reader.fail(what + " is an array of arrays");
  const auto n = reader.number<std::uint64_t>(what);
  const std::uint64_t smallest = item == GgufKind::string ? 8 : size_of_kind(item);
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

std::string_view name_at(std::string_view file, std::uint64_t at) {
  std::uint64_t length;
  std::memcpy(&length, file.data() + at, sizeof length);
  return file.substr(at + sizeof length, length);
}

// In order of their names; throws for two of the same.
void sort_names(std::string_view file, std::vector<std::uint64_t>& places, const char* kind,
                const std::string& where) {
  std::sort(places.begin(), places.end(),
            [&](std::uint64_t a, std::uint64_t b) { return name_at(file, a) < name_at(file, b); });
  for (std::size_t i = 1; i < places.size(); ++i)
    if (name_at(file, places[i - 1]) == name_at(file, places[i]))
      throw FormatError(where + ": has two of " + named(kind, name_at(file, places[i])));
}

std::optional<std::uint64_t> place_of(std::string_view file, const std::vector<std::uint64_t>& places,
                                      std::string_view name) {
  const auto at = std::lower_bound(places.begin(), places.end(), name,
                                   [&](std::uint64_t p, std::string_view n) { return name_at(file, p) < n; });
  if (at == places.end() || name_at(file, *at) != name) return std::nullopt;
  return *at;
}

// What a tensor's record says, as far as it makes sense by itself.
struct Record {
  std::string_view name;
  std::vector<std::int64_t> shape = {};
  GgufType type = GgufType::f32;
  std::uint64_t offset = 0, bytes = 0;
};

Record read_record(BoundedReader& reader) {
  Record r{.name = reader.string("the name of a tensor")};
  const std::string what = named("tensor", r.name);
  if (r.name.size() > max_name)
    reader.fail(what + " has a name of " + std::to_string(r.name.size()) + " bytes, expected at most 63");
  check_text(reader, r.name, what);
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
  if (!is_known(type)) {
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
      r.bytes > std::uint64_t(INT64_MAX) - max_alignment)
    reader.fail(what + " has sizes whose product overflows");
  r.offset = reader.number<std::uint64_t>(what);
  return r;
}

}  // namespace

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

std::string gguf_padding(std::uint64_t bytes) {
  return std::string(padded(bytes, GgufStart::alignment) - bytes, '\0');
}

Gguf::Gguf(std::string_view file, std::string where) : file_(file), where_(std::move(where)) {
  BoundedReader reader(file_, 0, where_);
  if (file_.size() < magic.size() || !file_.starts_with(magic))
    reader.fail("does not begin with GGUF: expected a GGUF file, or a Hugging Face folder");
  reader.bytes(magic.size(), "GGUF");
  const auto version = reader.number<std::uint32_t>("the version");
  if (version != 2 && version != 3)
    reader.fail("version is " + std::to_string(version) + ", expected 2 or 3");
  const std::uint64_t tensors = reader.count("tensors", 32), keys = reader.count("keys", 13);
  keys_.reserve(keys), tensors_.reserve(tensors);
  for (std::uint64_t i = 0; i < keys; ++i) {
    keys_.push_back(reader.at());
    const std::string_view name = reader.string("the name of a key");
    const std::string what = named("key", name);
    if (name.size() > max_key)
      reader.fail(what + " has " + std::to_string(name.size()) + " bytes, expected at most 65535");
    check_text(reader, name, what);
    const GgufKind kind = reader.kind(what);
    skip_value(reader, kind, what);
  }
  sort_names(file_, keys_, "key", where_);
  std::uint64_t alignment = GgufStart::alignment;
  if (const auto given = find(alignment_key)) {
    const std::int64_t n = given->kind == GgufKind::u32 ? integer(alignment_key) : 0;
    if (n < 1 || static_cast<std::uint64_t>(n) > max_alignment || (n & (n - 1)) != 0)
      refuse(alignment_key, "a u32 that is a power of two up to 65536");
    alignment = static_cast<std::uint64_t>(n);
  }
  std::uint64_t used = 0, end = 0;  // bytes of data so far, and with the zeros behind them
  std::string_view last;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    tensors_.push_back(reader.at());
    const Record r = read_record(reader);
    if (r.offset != end)
      reader.fail(named("tensor", r.name) + " is at " + std::to_string(r.offset) + ", expected " +
                  std::to_string(end) + ", where the one before it ends");
    if (end > file_.size() || r.bytes > file_.size() - end)
      reader.fail(named("tensor", r.name) + " has " + std::to_string(r.bytes) + " bytes from " +
                  std::to_string(end) + ", the file " + std::to_string(file_.size()));
    used = end + r.bytes;
    end = padded(used, alignment);
    last = r.name;
  }
  data_ = padded(reader.at(), alignment);
  if (used > 0 &&
      (data_ > file_.size() || used > file_.size() - data_))  // the last one is the first that lacks
    reader.fail(named("tensor", last) + " ends at byte " + std::to_string(data_ + used) + ", the file at " +
                std::to_string(file_.size()));
  sort_names(file_, tensors_, "tensor", where_);
}

std::vector<std::string> Gguf::keys() const {
  std::vector<std::string> names;
  for (const std::uint64_t at : keys_) names.emplace_back(name_at(file_, at));
  return names;
}

std::vector<GgufTensor> Gguf::tensors() const {
  std::vector<GgufTensor> all;
  for (const std::uint64_t at : tensors_) all.push_back(*tensor(name_at(file_, at)));
  return all;
}

std::optional<GgufTensor> Gguf::tensor(std::string_view name) const {
  const auto at = place_of(file_, tensors_, name);
  if (!at) return std::nullopt;
  BoundedReader reader(file_, *at, where_);
  Record r = read_record(reader);
  return GgufTensor{r.name, r.type, std::move(r.shape), file_.substr(data_ + r.offset, r.bytes)};
}

// ---- Values

std::optional<Gguf::Value> Gguf::find(std::string_view key) const {
  const auto at = place_of(file_, keys_, key);
  if (!at) return std::nullopt;
  BoundedReader reader(file_, *at, where_);
  const std::string what = named("key", reader.string("a key"));
  Value v{.kind = reader.kind(what), .item = GgufKind::u8, .count = 1, .bytes = {}};
  v.item = v.kind;
  if (v.kind == GgufKind::array) v.item = reader.kind(what), v.count = reader.number<std::uint64_t>(what);
  v.bytes = file_.substr(reader.at());
  return v;
}

Gguf::Value Gguf::value(std::string_view key, const char* expected) const {
  const auto found = find(key);
  if (!found) throw FormatError(where_ + ": has no key " + std::string(key) + ", expected " + expected);
  return *found;
}

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

// A u64 above 2^63 becomes negative, which no key means.
std::int64_t whole_at(const char* from, GgufKind kind) {
  switch (kind) {
    case GgufKind::u8:
    case GgufKind::boolean:
      return loaded<std::uint8_t>(from);
    case GgufKind::i8:
      return loaded<std::int8_t>(from);
    case GgufKind::u16:
      return loaded<std::uint16_t>(from);
    case GgufKind::i16:
      return loaded<std::int16_t>(from);
    case GgufKind::u32:
      return loaded<std::uint32_t>(from);
    case GgufKind::i32:
      return loaded<std::int32_t>(from);
    default:
      return loaded<std::int64_t>(from);
  }
}

double real_at(const char* from, GgufKind kind) {
  if (kind == GgufKind::f32) return static_cast<double>(loaded<float>(from));
  if (kind == GgufKind::f64) return loaded<double>(from);
  return static_cast<double>(whole_at(from, kind));
}

std::string real_text(double x) {
  return std::isfinite(x) ? json_number(x) : "not finite";
}

// The strings that lie one after another.
std::vector<std::string> strings_at(std::string_view bytes, std::uint64_t n) {
  std::vector<std::string> all;
  all.reserve(n);
  for (std::uint64_t i = 0; i < n; ++i) {
    const std::string_view text = name_at(bytes, 0);
    all.emplace_back(text);
    bytes.remove_prefix(sizeof(std::uint64_t) + text.size());
  }
  return all;
}

}  // namespace

std::string Gguf::text(std::string_view key) const {
  const auto v = find(key);
  if (!v) return "not there";
  if (v->kind == GgufKind::array) return "an array of " + std::to_string(v->count);
  if (v->kind == GgufKind::string) {
    const std::string_view text = name_at(v->bytes, 0);
    return utf8_valid_bytes(text) == text.size() ? shown(text) : "not UTF-8";
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
  const std::string_view text = name_at(v.bytes, 0);
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

std::vector<std::string> Gguf::strings(std::string_view key) const {
  const Value v = value(key, "an array of texts");
  if (v.kind != GgufKind::array || v.item != GgufKind::string) refuse(key, "an array of texts");
  return strings_at(v.bytes, v.count);
}

std::vector<std::int64_t> Gguf::integers(std::string_view key) const {
  const Value v = value(key, "an array of whole numbers");
  if (v.kind != GgufKind::array || (!is_whole(v.item) && v.item != GgufKind::boolean))
    refuse(key, "an array of whole numbers");
  std::vector<std::int64_t> all;
  for (std::uint64_t i = 0; i < v.count; ++i)
    all.push_back(whole_at(v.bytes.data() + i * size_of_kind(v.item), v.item));
  return all;
}

std::vector<double> Gguf::numbers(std::string_view key) const {
  const Value v = value(key, "an array of numbers");
  if (v.kind != GgufKind::array || (!is_whole(v.item) && !is_real(v.item)))
    refuse(key, "an array of numbers");
  std::vector<double> all;
  for (std::uint64_t i = 0; i < v.count; ++i)
    all.push_back(real_at(v.bytes.data() + i * size_of_kind(v.item), v.item));
  return all;
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

MappedGguf::MappedGguf(const std::string& path, std::string_view who)
    : file(path, who), gguf(file.bytes(), "[" + std::string(who) + "] " + path) {}

bool is_gguf_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

// ---- Writing

namespace {

template <class T>
void append(std::string& to, const T& x) {
  to.append(reinterpret_cast<const char*>(&x), sizeof x);
}
void append_string(std::string& to, std::string_view text) {
  append(to, std::uint64_t{text.size()});
  to.append(text);
}

template <class T>
void append_array(std::string& to, GgufKind kind, const std::vector<T>& items) {
  append(to, kind);
  append(to, std::uint64_t{items.size()});
  for (const T& x : items) append(to, x);
}

}  // namespace

void GgufStart::begin(const std::string& key, GgufKind kind) {
  append_string(keys_, key);
  append(keys_, kind);
  ++key_count_;
}

void GgufStart::add(const std::string& key, std::uint32_t value) {
  begin(key, GgufKind::u32), append(keys_, value);
}
void GgufStart::add(const std::string& key, float value) {
  begin(key, GgufKind::f32), append(keys_, value);
}
void GgufStart::add(const std::string& key, bool value) {
  begin(key, GgufKind::boolean), append(keys_, std::uint8_t{value});
}
void GgufStart::add(const std::string& key, const std::string& value) {
  begin(key, GgufKind::string), append_string(keys_, value);
}
void GgufStart::add(const std::string& key, const std::vector<std::string>& items) {
  begin(key, GgufKind::array);
  append(keys_, GgufKind::string), append(keys_, std::uint64_t{items.size()});
  for (const std::string& item : items) append_string(keys_, item);
}
void GgufStart::add(const std::string& key, const std::vector<std::int32_t>& items) {
  begin(key, GgufKind::array), append_array(keys_, GgufKind::i32, items);
}
void GgufStart::add(const std::string& key, const std::vector<float>& items) {
  begin(key, GgufKind::array), append_array(keys_, GgufKind::f32, items);
}

void GgufStart::add_booleans(const std::string& key, const std::vector<bool>& items) {
  begin(key, GgufKind::array);
  append_array(keys_, GgufKind::boolean, std::vector<std::uint8_t>(items.begin(), items.end()));
}

void GgufStart::add_tensor(const std::string& name, GgufType type, const std::vector<std::int64_t>& shape) {
  append_string(tensors_, name);
  append(tensors_, static_cast<std::uint32_t>(shape.size()));
  for (std::size_t i = shape.size(); i-- > 0;) append(tensors_, shape[i]);
  append(tensors_, type), append(tensors_, offset_);
  offset_ = padded(offset_ + gguf_bytes(type, shape), alignment);
  ++tensor_count_;
}

std::string GgufStart::bytes() const {
  std::string all(magic);
  append(all, std::uint32_t{3}), append(all, tensor_count_), append(all, key_count_);
  all += keys_;
  all += tensors_;
  return all + gguf_padding(all.size());
}

}  // namespace tg::io
