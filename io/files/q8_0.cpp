#include "io/files/gguf_format.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include <tilegrad/core/base/dtype.h>

namespace tg::io {

bool to_q8_0(std::span<const float> from, std::span<std::byte> to) {
  for (std::size_t b = 0; b * q8_0_numbers < from.size(); ++b) {
    const std::span<const float> x = from.subspan(b * q8_0_numbers, q8_0_numbers);
    float largest = 0;
    for (const float value : x) largest = std::max(largest, std::abs(value));
    const float d = largest / 127;
    // If d is so small that 1/d is infinite, d is 0 in f16. ggml leaves q undefined in that case.
    const float inverse = d == 0 || !std::isfinite(1 / d) ? 0 : 1 / d;
    const float16 scale(d);
    if (!std::isfinite(static_cast<float>(scale))) return false;
    std::byte* block = to.data() + b * q8_0_bytes;
    std::memcpy(block, &scale.bits, 2);
    for (std::size_t i = 0; i < q8_0_numbers; ++i)
      block[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::round(x[i] * inverse)));
  }
  return true;
}

void from_q8_0(std::span<const std::byte> from, std::span<float> to) {
  for (std::size_t b = 0; b * q8_0_numbers < to.size(); ++b) {
    const std::byte* block = from.data() + b * q8_0_bytes;
    float16 scale;
    std::memcpy(&scale.bits, block, 2);
    const float d = static_cast<float>(scale);
    for (std::size_t i = 0; i < q8_0_numbers; ++i)
      to[b * q8_0_numbers + i] = d * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
  }
}

}  // namespace tg::io
