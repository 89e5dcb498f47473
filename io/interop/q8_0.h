// Q8_0, ggml's format of 8 bits: blocks of 32 numbers of a row, each with a scale d in f16 and 32 whole
// numbers q from −127 to 127; a number is d·q.
#pragma once

#include <cstddef>
#include <span>

namespace tg::io {

inline constexpr std::size_t q8_0_numbers = 32, q8_0_bytes = 34;  // of a block

// d = max|x| / 127 and q = x·(1/d), rounded half away from zero, with the d in f32; then d is rounded to f16.
// The bits are those of ggml. Numbers are finite, as many as whole blocks; `to` has the bytes of these.
// False, and then `to` is undefined, if a d is too large for f16.
bool to_q8_0(std::span<const float> from, std::span<std::byte> to);
// The inverse, in f32, which it needs.
void from_q8_0(std::span<const std::byte> from, std::span<float> to);

}  // namespace tg::io
