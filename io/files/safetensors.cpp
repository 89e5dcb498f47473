// File layout: u64 N (little-endian) · N bytes of JSON header · data. For the rules see
// https://huggingface.co/docs/safetensors, "Format".
#include <tilegrad/io/files/safetensors.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/files/json.h>
#include "core/base/messages.h"
#include "io/files/safetensors_start.h"
#include "io/files/utf8.h"

namespace tg::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

constexpr std::uint64_t max_header = 100'000'000;
constexpr std::string_view file_names[] = {"F64", "F32", "BF16", "F16", "I64", "I32", "U8", "BOOL"};

std::string_view file_name_of(DType t) {
  return file_names[static_cast<int>(t)];
}

std::optional<DType> dtype_from(std::string_view name) {
  for (const DType t : all_dtypes) {
    if (file_name_of(t) == name) return t;
  }
  return std::nullopt;
}

// Returns the size of a tensor in bytes. Returns nothing if a dimension is negative or the size overflows.
std::optional<std::uint64_t> byte_size(const std::vector<std::int64_t>& shape, DType dtype) {
  std::uint64_t n = 1;
  for (const std::int64_t d : shape) {
    if (d < 0 || __builtin_mul_overflow(n, static_cast<std::uint64_t>(d), &n)) return std::nullopt;
  }
  if (__builtin_mul_overflow(n, static_cast<std::uint64_t>(size_of(dtype)), &n)) return std::nullopt;
  return n;
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string s = "[";
  for (const std::int64_t d : shape) s += (s.size() > 1 ? "," : "") + std::to_string(d);
  return s + "]";
}

struct Entry {
  std::string name;
  DType dtype = f32;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;  // bytes in the data section
};

std::uint64_t offset(JsonReader& json) {
  const std::int64_t n = json.integer();
  if (n < 0) json.fail("negative offset");
  return static_cast<std::uint64_t>(n);
}

// Reads {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}. Skips unknown keys.
Entry read_entry(JsonReader& json, std::string name) {
  Entry e;
  e.name = std::move(name);
  const std::string who = "tensor " + json_excerpt(e.name) + " ";
  if (has_control_characters(e.name)) json.fail(who + "has control characters in its name");
  bool has_dtype = false, has_shape = false, has_offsets = false;
  json.begin_object();
  while (const auto key = json.next_key()) {
    if (*key == "dtype") {
      const std::string dtype = json.string();
      const auto known = dtype_from(dtype);
      if (!known)
        json.fail(who + "has dtype " + json_excerpt(dtype) +
                  ", expected F64 F32 BF16 F16 I64 I32 U8 or BOOL");
      e.dtype = *known;
      has_dtype = true;
    } else if (*key == "shape") {
      json.begin_array();
      while (json.next_item()) {
        e.shape.push_back(json.integer());
        if (e.shape.back() < 0) json.fail(who + "has a negative dimension");
      }
      has_shape = true;
    } else if (*key == "data_offsets") {
      json.begin_array();
      const bool one = json.next_item();
      if (one) e.begin = offset(json);
      const bool two = one && json.next_item();
      if (two) e.end = offset(json);
      if (!two || json.next_item()) json.fail(who + "has data_offsets that are not two numbers");
      has_offsets = true;
    } else {
      json.skip();
    }
  }
  if (!has_dtype) json.fail(who + "has no dtype");
  if (!has_shape) json.fail(who + "has no shape");
  if (!has_offsets) json.fail(who + "has no data_offsets");
  return e;
}

std::vector<Entry> read_header(std::string_view header, const std::string& where, Metadata& metadata) {
  JsonReader json(header, where + ": header");
  if (header.empty() || header.front() != '{') json.fail("does not start with '{'");
  std::vector<Entry> entries;
  json.begin_object();
  while (auto key = json.next_key()) {
    if (*key != "__metadata__") {
      entries.push_back(read_entry(json, std::move(*key)));
      continue;
    }
    json.begin_object();
    while (auto name = json.next_key()) metadata[*name] = json.string();
  }
  json.end();
  return entries;
}

std::string header_text(const std::vector<std::pair<std::string, TensorKind>>& ordered,
                        const Metadata& metadata) {
  std::string header = "{";
  const auto member = [&](std::string_view name) {
    if (header.size() > 1) header += ',';
    header += json_string(name) + ":";
  };
  if (!metadata.empty()) {
    member("__metadata__");
    const char* separator = "{";
    for (const auto& [name, text] : metadata) {
      header += separator + json_string(name) + ":" + json_string(text);
      separator = ",";
    }
    header += '}';
  }
  std::uint64_t begin = 0;
  for (const auto& [name, tensor] : ordered) {
    const std::uint64_t end = begin + byte_size(tensor.shape, tensor.dtype).value_or(0);
    member(name);
    header += "{\"dtype\":\"" + std::string(file_name_of(tensor.dtype)) +
              "\",\"shape\":" + text_of(tensor.shape) + ",\"data_offsets\":[" + std::to_string(begin) + "," +
              std::to_string(end) + "]}";
    begin = end;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');  // 8 + N is then a multiple of 8
  return header;
}

// Checks every rule of the format.
TensorMap views_of(std::string_view file, const std::string& where, Metadata& metadata) {
  const auto refuse = [&](const std::string& what) { throw FormatError(where + ": " + what); };
  const std::uint64_t size = file.size();
  std::uint64_t n = 0;
  if (size < 8) refuse("file of " + std::to_string(size) + " bytes, expected at least 8");
  std::memcpy(&n, file.data(), 8);
  if (n > max_header && file.front() == '{')
    refuse("begins with '{', as JSON does, and is not a safetensors file");
  if (n > max_header) refuse("header of " + std::to_string(n) + " bytes, expected at most 100000000");
  if (n > size - 8) {
    refuse("header of " + std::to_string(n) + " bytes in a file of " + std::to_string(size) +
           ": is the file truncated?");
  }
  std::vector<Entry> entries = read_header(file.substr(8, static_cast<std::size_t>(n)), where, metadata);
  std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });

  // Each tensor begins at the end of the previous one, without gaps or overlaps.
  const std::uint64_t data = 8 + n, available = size - data;
  std::uint64_t previous = 0;
  for (const Entry& e : entries) {
    const std::string who = "tensor " + json_excerpt(e.name) + " ";
    if (e.begin != previous) {
      refuse(who + "begins at " + std::to_string(e.begin) +
             (e.begin < previous ? ", an overlap" : ", a hole") + ": expected " + std::to_string(previous));
    }
    if (e.end < e.begin) refuse(who + "ends at " + std::to_string(e.end) + " before it begins");
    const auto bytes = byte_size(e.shape, e.dtype);
    if (!bytes) refuse(who + "has a shape " + text_of(e.shape) + " beyond 64 bits");
    if (*bytes != e.end - e.begin) {
      refuse(who + "has " + std::to_string(e.end - e.begin) + " bytes, expected " + std::to_string(*bytes) +
             " for " + std::string(file_name_of(e.dtype)) + " " + text_of(e.shape));
    }
    if (e.end > available) {
      refuse(who + "ends at " + std::to_string(e.end) + " of " + std::to_string(available) +
             " data bytes: is the file truncated?");
    }
    previous = e.end;
  }
  if (previous != available) {
    refuse("tensors cover " + std::to_string(previous) + " of " + std::to_string(available) + " data bytes");
  }
  TensorMap tensors;
  for (Entry& e : entries) {
    const std::span bytes(file.data() + data + e.begin, static_cast<std::size_t>(e.end - e.begin));
    tensors.emplace(std::move(e.name), TensorView{e.dtype, std::move(e.shape), std::as_bytes(bytes)});
  }
  return tensors;
}

}  // namespace

SafeTensors parse_safetensors(std::string file, std::string_view where) {
  SafeTensors out;
  out.storage = std::move(file);
  out.tensors = views_of(out.storage, std::string(where), out.metadata);
  for (const auto& [name, tensor] : out.tensors) {
    if (tensor.dtype != boolean) continue;
    char* from =
        out.storage.data() + (reinterpret_cast<const char*>(tensor.bytes.data()) - out.storage.data());
    std::transform(from, from + tensor.bytes.size(), from, [](char c) { return static_cast<char>(c != 0); });
  }
  return out;
}

MappedSafeTensors map_safetensors(const std::string& path, std::string_view who) {
  MappedSafeTensors out{MappedFile(path, who)};
  out.tensors = views_of(out.file.bytes(), "[" + std::string(who) + "] " + path, out.metadata);
  out.file.check();
  return out;
}

SafeTensors load_safetensors(const std::string& path) {
  return parse_safetensors(read_file(path, "load_safetensors"), "[load_safetensors] " + path);
}

SafeTensorsStart safetensors_start(const std::map<std::string, TensorKind>& tensors, const Metadata& metadata,
                                   const std::string& where) {
  const std::string who = where + ": ";
  const auto check_text = [&](const std::string& text) {
    if (utf8_valid_bytes(text) != text.size()) throw FormatError(who + json_excerpt(text) + " is not UTF-8");
  };
  for (const auto& [name, text] : metadata) check_text(name), check_text(text);
  for (const auto& [name, tensor] : tensors) {
    check_text(name);
    if (has_control_characters(name))
      throw FormatError(who + "tensor " + json_excerpt(name) + " has control characters in its name");
    if (name == "__metadata__") throw FormatError(who + "a tensor cannot be named __metadata__");
    if (!byte_size(tensor.shape, tensor.dtype))
      throw ShapeError(who + "tensor " + json_excerpt(name) + " has a shape " + text_of(tensor.shape) +
                       " beyond 64 bits");
  }
  std::vector<std::pair<std::string, TensorKind>> ordered(tensors.begin(), tensors.end());
  std::ranges::stable_sort(ordered, [](const auto& a, const auto& b) {
    return size_of(a.second.dtype) > size_of(b.second.dtype);
  });
  const std::string header = header_text(ordered, metadata);
  if (header.size() > max_header) throw FormatError(who + "header over 100 MB");
  SafeTensorsStart start;
  const std::uint64_t n = header.size();
  start.bytes.assign(reinterpret_cast<const char*>(&n), 8);
  start.bytes += header;
  for (auto& [name, tensor] : ordered) start.order.push_back(std::move(name));
  return start;
}

SafeTensorsContent safetensors_content(const TensorMap& tensors, const Metadata& metadata,
                                       const std::string& where) {
  std::map<std::string, TensorKind> kinds;
  for (const auto& [name, tensor] : tensors) {
    const auto bytes = byte_size(tensor.shape, tensor.dtype);
    if (!bytes || *bytes != tensor.bytes.size()) {
      throw ShapeError(where + ": tensor " + json_excerpt(name) + " is " +
                       std::string(name_of(tensor.dtype)) + " " + text_of(tensor.shape) + " but has " +
                       std::to_string(tensor.bytes.size()) + " bytes");
    }
    kinds[name] = {tensor.dtype, tensor.shape};
  }
  SafeTensorsStart start = safetensors_start(kinds, metadata, where);
  SafeTensorsContent content{std::move(start.bytes), {}};
  for (const std::string& name : start.order) {
    const auto& bytes = tensors.at(name).bytes;
    content.tensors.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return content;
}

std::vector<std::string_view> SafeTensorsContent::pieces() const {
  std::vector<std::string_view> all{header};
  all.insert(all.end(), tensors.begin(), tensors.end());
  return all;
}

void save_safetensors(const std::string& path, const TensorMap& tensors, const Metadata& metadata) {
  const auto content = safetensors_content(tensors, metadata, "[save_safetensors] " + path);
  replace_file(path, content.pieces(), "save_safetensors");
}

}  // namespace tg::io
