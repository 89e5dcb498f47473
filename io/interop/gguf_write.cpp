#include "io/interop/gguf_write.h"

#include <numeric>

#include <tilegrad/core/base/error.h>

namespace tg::io {

namespace {

template <class T>
void put(std::string& to, T x) {
  to.append(reinterpret_cast<const char*>(&x), sizeof x);
}

void put_string(std::string& to, std::string_view s) {
  put(to, static_cast<std::uint64_t>(s.size()));
  to += s;
}

}  // namespace

std::uint64_t gguf_padding(std::uint64_t bytes) {
  return (gguf_alignment - bytes % gguf_alignment) % gguf_alignment;
}

void GgufStart::key(const std::string& key, GgufType type) {
  put_string(values_, key);
  put(values_, static_cast<std::uint32_t>(type));
  ++value_count_;
}

void GgufStart::array(const std::string& name, GgufType element, std::size_t count) {
  key(name, GgufType::array);
  put(values_, static_cast<std::uint32_t>(element));
  put(values_, static_cast<std::uint64_t>(count));
}

void GgufStart::u32(const std::string& name, std::int64_t value) {
  if (value < 0 || value > UINT32_MAX)
    throw FormatError("[save_gguf] " + name + " would be " + std::to_string(value) + ", expected 32 bits");
  key(name, GgufType::u32);
  put(values_, static_cast<std::uint32_t>(value));
}

void GgufStart::f32(const std::string& name, double value) {
  key(name, GgufType::f32);
  put(values_, static_cast<float>(value));
}

void GgufStart::boolean(const std::string& name, bool value) {
  key(name, GgufType::boolean);
  values_ += static_cast<char>(value);
}

void GgufStart::string(const std::string& name, std::string_view value) {
  key(name, GgufType::string);
  put_string(values_, value);
}

void GgufStart::strings(const std::string& name, const std::vector<std::string>& values) {
  array(name, GgufType::string, values.size());
  for (const std::string& s : values) put_string(values_, s);
}

void GgufStart::i32s(const std::string& name, const std::vector<std::int32_t>& values) {
  array(name, GgufType::i32, values.size());
  for (const std::int32_t x : values) put(values_, x);
}

void GgufStart::f32s(const std::string& name, const std::vector<float>& values) {
  array(name, GgufType::f32, values.size());
  for (const float x : values) put(values_, x);
}

void GgufStart::booleans(const std::string& name, const std::vector<bool>& values) {
  array(name, GgufType::boolean, values.size());
  for (const bool x : values) values_ += static_cast<char>(x);
}

void GgufStart::tensor(const std::string& name, GgufEncoding encoding,
                       const std::vector<std::int64_t>& shape) {
  put_string(tensors_, name);
  put(tensors_, static_cast<std::uint32_t>(shape.size()));
  for (auto d = shape.rbegin(); d != shape.rend(); ++d) put(tensors_, *d);
  put(tensors_, static_cast<std::uint32_t>(encoding));
  put(tensors_, offset_);
  const std::int64_t rows =
      std::accumulate(shape.begin(), shape.end() - 1, std::int64_t{1}, std::multiplies<>());
  const std::uint64_t bytes =
      *row_bytes(encoding, static_cast<std::uint64_t>(shape.back())) * static_cast<std::uint64_t>(rows);
  offset_ += bytes + gguf_padding(bytes);
  ++tensor_count_;
}

std::string GgufStart::bytes() const {
  std::string all = "GGUF";
  put(all, std::uint32_t{3});
  put(all, tensor_count_);
  put(all, value_count_);
  all += values_;
  all += tensors_;
  all.append(gguf_padding(all.size()), '\0');
  return all;
}

}  // namespace tg::io
