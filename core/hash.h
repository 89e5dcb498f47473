// XXH3-128 of a sequence of values: the key of everything that is cached by structure.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/layout.h"

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

}  // namespace tg
