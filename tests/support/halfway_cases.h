// Difficult cases of rounding to bf16 and f16. These are numbers halfway between two neighbors. The lower
// neighbor is even or odd.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <tilegrad/core/base/dtype.h>

namespace tg {

// Returns pairs of neighbors of the type, below its largest number. Each pair is a number and the next number
// away from 0. `Half` is bfloat16 or float16.
template <class Half>
std::vector<std::pair<float, float>> neighbours() {
  std::vector<std::pair<float, float>> pairs;
  const auto number = [](std::uint32_t bits) {
    Half x;
    x.bits = static_cast<std::uint16_t>(bits);
    return static_cast<float>(x);
  };
  for (std::uint32_t bits = 0; bits < 0xffff; ++bits)
    if (bits != 0x7fff && std::isfinite(number(bits)) && std::isfinite(number(bits + 1)))
      pairs.emplace_back(number(bits), number(bits + 1));
  return pairs;
}

// Returns f32 numbers halfway between two neighbors, and the numbers one f32 ulp below and above.
inline std::vector<float> halfway_cases() {
  std::vector<float> cases;
  const auto add = [&](const std::vector<std::pair<float, float>>& pairs) {
    for (const auto& [low, high] : pairs) {
      const auto middle = std::bit_cast<std::uint32_t>(low / 2 + high / 2);
      for (const std::uint32_t bits : {middle - 1, middle, middle + 1}) {
        const auto x = std::bit_cast<float>(bits);
        if (std::isfinite(x)) cases.push_back(x);
      }
    }
  };
  add(neighbours<bfloat16>());
  add(neighbours<float16>());
  return cases;
}

}  // namespace tg
