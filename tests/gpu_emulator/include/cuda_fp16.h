// Replaces CUDA's header of the same name.
#pragma once

#include <cuda_runtime.h>

struct __half {
  _Float16 value;
  constexpr __half() : value(0) {}  // as in __nv_bfloat16
  __half(float x) : value(static_cast<_Float16>(x)) {}
  operator float() const { return static_cast<float>(value); }
};
struct alignas(4) __half2 {
  __half x, y;
};
inline __half __float2half_rn(float x) {
  return x;
}
inline __half __float2half(float x) {
  return x;
}
inline float __half2float(__half x) {
  return x;
}
