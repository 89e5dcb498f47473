// Numbers of f32 that rounding to bf16 and to f16 must tell apart: halfway between two neighbours, whose
// lower one is even or odd, and one unit in the last place of f32 below and above.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include <tilegrad/core/base/dtype.h>

namespace tg {

inline std::vector<float> halfway_cases() {
  std::vector<float> cases;
  const auto add = [&](std::uint32_t middle) {
    for (const std::uint32_t bits : {middle - 1, middle, middle + 1}) {
      const auto x = std::bit_cast<float>(bits);
      if (std::isfinite(x)) cases.push_back(x);
    }
  };
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) add(upper << 16 | 0x8000);  // of bf16
  for (std::uint32_t sign : {0u, 0x8000u})
    for (std::uint32_t h = 0; h < 0x7bff; ++h) {  // of f16, subnormals included
      const auto number = [&](std::uint32_t bits) {
        float16 x;
        x.bits = static_cast<std::uint16_t>(sign | bits);
        return static_cast<float>(x);
      };
      add(std::bit_cast<std::uint32_t>((number(h) + number(h + 1)) / 2));
    }
  return cases;
}

}  // namespace tg
