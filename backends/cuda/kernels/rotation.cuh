// The rotation of a pair. Every kernel that rotates uses the same instructions, so results are bitwise
// identical.
#pragma once

#include <cuda_runtime.h>

namespace tg::cuda {

// (a, b) → (a·c − b·s, a·s + b·c).
__device__ __forceinline__ void rotate_pair(float& a, float& b, float c, float s) {
  const float p = a, q = b;
  a = fmaf(p, c, -(q * s));
  b = fmaf(p, s, q * c);
}
__device__ __forceinline__ void rotate_pair(double& a, double& b, double c, double s) {
  const double p = a, q = b;
  a = fma(p, c, -(q * s));
  b = fma(p, s, q * c);
}

}  // namespace tg::cuda
