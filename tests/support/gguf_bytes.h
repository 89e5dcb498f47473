// Writes the bytes of a GGUF file, field by field.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tg::testing {

struct GgufBytes {
  std::string all;
  template <class T>
  GgufBytes& number(T x) {
    all.append(reinterpret_cast<const char*>(&x), sizeof x);
    return *this;
  }
  GgufBytes& text(std::string_view s) {
    number(std::uint64_t{s.size()});
    all += s;
    return *this;
  }
  GgufBytes& start(std::int64_t tensors, std::int64_t keys, std::uint32_t version = 3) {
    all += "GGUF";
    return number(version).number(tensors).number(keys);
  }
  GgufBytes& key(std::string_view name, std::uint32_t kind) { return text(name).number(kind); }
  GgufBytes& array(std::string_view name, std::uint32_t item, std::uint64_t count) {
    return key(name, 9).number(item).number(count);
  }
  GgufBytes& tensor(std::string_view name, const std::vector<std::int64_t>& sizes, std::uint32_t type,
                    std::uint64_t offset) {
    text(name).number(static_cast<std::uint32_t>(sizes.size()));
    for (const std::int64_t n : sizes) number(n);
    return number(type).number(offset);
  }
  GgufBytes& fill(std::size_t n, char byte = 0) {
    all += std::string(n, byte);
    return *this;
  }
  GgufBytes& align(std::size_t alignment = 32) {
    while (all.size() % alignment != 0) all += '\0';
    return *this;
  }
};

}  // namespace tg::testing
