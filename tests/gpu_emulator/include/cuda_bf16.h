// Replaces CUDA's header of the same name.
#pragma once

#include <cuda_runtime.h>

struct __nv_bfloat16 {
  unsigned short bits;
  constexpr __nv_bfloat16() : bits(0) {}  // without it, a __shared__ array has a guard
  __nv_bfloat16(float x) {                // rounds to nearest even
    const unsigned u = __float_as_uint(x);
    bits = static_cast<unsigned short>(x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  operator float() const { return __uint_as_float(unsigned{bits} << 16); }
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return x;
}
inline __nv_bfloat16 __float2bfloat16(float x) {
  return x;
}
inline float __bfloat162float(__nv_bfloat16 x) {
  return x;
}
