// XXH3-128 of a sequence of values: the key of every cache that is indexed by structure.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tilegrad/core/base/layout.h>

namespace tg {

class Hasher {
 public:
  void add(std::uint64_t v);
  void add(std::string_view s);  // with its length, so that "ab","c" differs from "a","bc"
  void add(const Dims& d);
  std::array<std::uint64_t, 2> digest() const;

 private:
  std::vector<std::uint8_t> bytes_;
};

// XXH3-128 of the concatenated pieces, as the 32 hex digits that the command xxh128sum prints.
std::string xxh3_128(std::span<const std::string_view> pieces);

}  // namespace tg
