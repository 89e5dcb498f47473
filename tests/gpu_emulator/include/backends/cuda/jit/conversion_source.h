// Defines the conversions in backends/cuda/jit/conversion_source.h for the host's compiler.
#pragma once

namespace tg::cuda {

inline constexpr const char* conversion_source = R"(
inline float float_of_f16(unsigned short x) { _Float16 y; __builtin_memcpy(&y, &x, 2); return (float)y; }
inline unsigned short f16_of(float x) {
  const _Float16 y = (_Float16)x; unsigned short bits; __builtin_memcpy(&bits, &y, 2); return bits; }
inline unsigned short bf16_of(float x) {
  const unsigned u = __float_as_uint(x);
  return (unsigned short)(x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16); }
)";

}  // namespace tg::cuda
