#include "io/files/gguf.h"

#include <algorithm>
#include <filesystem>

#include <tilegrad/core/base/error.h>
#include "io/files/gguf_record.h"

namespace tg::io {

namespace {

constexpr std::uint64_t max_key = 65535;

// Sorts the offsets by name. Throws FormatError if two names are equal.
void sort_names(std::string_view file, std::vector<std::uint64_t>& places, const char* kind,
                const std::string& where) {
  std::ranges::sort(places, [&](std::uint64_t a, std::uint64_t b) {
    return gguf_string_at(file, a) < gguf_string_at(file, b);
  });
  for (std::size_t i = 1; i < places.size(); ++i)
    if (gguf_string_at(file, places[i - 1]) == gguf_string_at(file, places[i]))
      throw FormatError(where + ": has two of " + gguf_named(kind, gguf_string_at(file, places[i])));
}

// Returns the index of the offset with that name.
std::optional<std::size_t> index_of_name(std::string_view file, const std::vector<std::uint64_t>& places,
                                         std::string_view name) {
  const auto at =
      std::lower_bound(places.begin(), places.end(), name,
                       [&](std::uint64_t p, std::string_view n) { return gguf_string_at(file, p) < n; });
  if (at == places.end() || gguf_string_at(file, *at) != name) return std::nullopt;
  return static_cast<std::size_t>(at - places.begin());
}

}  // namespace

Gguf::Gguf(std::string_view file, std::string where) : file_(file), where_(std::move(where)) {
  BoundedReader reader(file_, 0, where_);
  if (file_.size() < gguf_magic.size() || !file_.starts_with(gguf_magic))
    reader.fail("does not begin with GGUF: expected a GGUF file, or a Hugging Face folder");
  reader.bytes(gguf_magic.size(), "GGUF");
  const auto version = reader.number<std::uint32_t>("the version");
  if (version != 2 && version != 3)
    reader.fail("version is " + std::to_string(version) + ", expected 2 or 3");
  const std::uint64_t tensors = reader.count("tensors", 32), keys = reader.count("keys", 13);
  keys_.reserve(keys), tensors_.reserve(tensors);
  for (std::uint64_t i = 0; i < keys; ++i) {
    keys_.push_back(reader.at());
    const std::string_view name = reader.string("the name of a key");
    const std::string what = gguf_named("key", name);
    if (name.size() > max_key)
      reader.fail(what + " has " + std::to_string(name.size()) + " bytes, expected at most 65535");
    check_gguf_text(reader, name, what);
    const GgufKind kind = reader.kind(what);
    skip_gguf_value(reader, kind, what);
  }
  sort_names(file_, keys_, "key", where_);
  is_read_.resize(keys_.size());
  std::uint64_t alignment = gguf_alignment;
  if (const auto given = find(gguf_alignment_key)) {
    const std::int64_t n = given->kind == GgufKind::u32 ? integer(gguf_alignment_key) : 0;
    if (n < 1 || static_cast<std::uint64_t>(n) > max_gguf_alignment || (n & (n - 1)) != 0)
      refuse(gguf_alignment_key, "a u32 that is a power of two up to 65536");
    alignment = static_cast<std::uint64_t>(n);
  }
  std::uint64_t used = 0, end = 0;  // end of the data so far, without and with padding
  std::string_view last;
  for (std::uint64_t i = 0; i < tensors; ++i) {
    tensors_.push_back(reader.at());
    const GgufRecord r = read_gguf_record(reader);
    if (r.offset != end)
      reader.fail(gguf_named("tensor", r.name) + " is at " + std::to_string(r.offset) + ", expected " +
                  std::to_string(end) + ", where the one before it ends");
    if (end > file_.size() || r.bytes > file_.size() - end)
      reader.fail(gguf_named("tensor", r.name) + " has " + std::to_string(r.bytes) + " bytes from " +
                  std::to_string(end) + ", the file " + std::to_string(file_.size()));
    used = end + r.bytes;
    end = gguf_padded(used, alignment);
    last = r.name;
  }
  data_ = gguf_padded(reader.at(), alignment);
  if (used > 0 && (data_ > file_.size() || used > file_.size() - data_))  // the last tensor is then cut off
    reader.fail(gguf_named("tensor", last) + " ends at byte " + std::to_string(data_ + used) +
                ", the file at " + std::to_string(file_.size()));
  sort_names(file_, tensors_, "tensor", where_);
}

std::vector<std::string_view> Gguf::keys() const {
  std::vector<std::string_view> names;
  names.reserve(keys_.size());
  for (const std::uint64_t at : keys_) names.push_back(gguf_string_at(file_, at));
  return names;
}

std::string_view Gguf::unread_key(const std::function<bool(std::string_view)>& is_known) const {
  for (std::size_t i = 0; i < keys_.size(); ++i)
    if (const std::string_view name = gguf_string_at(file_, keys_[i]); !is_read_[i] && !is_known(name))
      return name;
  return {};
}

GgufTensor Gguf::tensor_from(std::uint64_t place) const {
  BoundedReader reader(file_, place, where_);
  GgufRecord r = read_gguf_record(reader);
  return {r.name, r.type, std::move(r.shape), file_.substr(data_ + r.offset, r.bytes)};
}

GgufTensor Gguf::tensor(std::size_t i) const {
  return tensor_from(tensors_.at(i));
}

std::optional<GgufTensor> Gguf::tensor(std::string_view name) const {
  const auto at = index_of_name(file_, tensors_, name);
  if (!at) return std::nullopt;
  return tensor_from(tensors_[*at]);
}

std::optional<Gguf::Value> Gguf::find(std::string_view key) const {
  const auto at = index_of_name(file_, keys_, key);
  if (!at) return std::nullopt;
  BoundedReader reader(file_, keys_[*at], where_);
  const std::string what = gguf_named("key", reader.string("a key"));
  Value v{.kind = reader.kind(what), .item = GgufKind::u8, .count = 1, .bytes = {}, .index = *at};
  v.item = v.kind;
  if (v.kind == GgufKind::array) v.item = reader.kind(what), v.count = reader.number<std::uint64_t>(what);
  v.bytes = file_.substr(reader.at());
  return v;
}

MappedGguf::MappedGguf(const std::string& path, std::string_view who)
    : file(path, who), gguf(file.bytes(), "[" + std::string(who) + "] " + path) {
  file.check();
}

bool is_gguf_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

}  // namespace tg::io
