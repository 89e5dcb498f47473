// Q8_0, a format of GGUF: 32 values of a row are a block of a scale in f16 and 32 whole numbers.
//
//   d = max |x| / 127,  q = x·(1/d) rounded, halves away from zero;  x ≈ f16(d)·q
//
// q is made with d in f32, before that is rounded to f16: so ggml's reference does it.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include <tilegrad/core/base/dtype.h>

namespace tg::io::q8_0 {

constexpr std::size_t values = 32;

struct Block {
  float16 d;
  std::array<std::int8_t, values> q;
};
static_assert(sizeof(Block) == 34);

inline Block block_of(std::span<const float, values> x) {
  float top = 0;
  for (const float e : x) top = std::max(top, std::abs(e));
  const float d = top / 127, factor = d == 0 ? 0 : 1 / d;
  Block b{.d = float16(d), .q = {}};
  for (std::size_t i = 0; i < values; ++i) b.q[i] = static_cast<std::int8_t>(std::round(x[i] * factor));
  return b;
}

inline void values_of(const Block& b, std::span<float, values> x) {
  for (std::size_t i = 0; i < values; ++i) x[i] = static_cast<float>(b.d) * static_cast<float>(b.q[i]);
}

}  // namespace tg::io::q8_0
