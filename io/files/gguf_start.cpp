#include "io/files/gguf_format.h"

namespace tg::io {

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
  offset_ = gguf_padded(offset_ + gguf_bytes(type, shape));
  ++tensor_count_;
}

std::string GgufStart::bytes() const {
  std::string all(gguf_magic);
  append(all, std::uint32_t{3}), append(all, tensor_count_), append(all, key_count_);
  all += keys_;
  all += tensors_;
  return all + gguf_padding(all.size());
}

}  // namespace tg::io
