// gelu and gelu_tanh with the same roundings as in pointwise_source.h. A GEMM kernel that computes them is
// bitwise identical to a separate step.
#pragma once

#include "backends/cuda/tile/ptx_sm80.cuh"

namespace tg::cuda {

// gelu_of(a), … compute f32 results. HalfGelu computes results that are rounded to a 16-bit type.
__device__ __forceinline__ float gelu_inverse(float x) {
  return __fdividef(1.f, x);
}
__device__ __forceinline__ float gelu_of(float a) {
  const float x = a < -20.f ? -20.f : a, t = fminf(36.f, x * x);
  float p = 6.15318151e-11f;
  p = fmaf(p, t, -8.09066694e-09f), p = fmaf(p, t, 4.29764099e-07f), p = fmaf(p, t, -1.17230561e-05f);
  p = fmaf(p, t, 0.000159901056f), p = fmaf(p, t, 9.59303028e-05f), p = fmaf(p, t, -0.104839541f);
  p = fmaf(p, t, -2.30220735f);
  return x * gelu_inverse(1.f + exp2f(x * p));
}
__device__ __forceinline__ float gelu_tanh_of(float a) {
  const float x = a < -30.f ? -30.f : a, twice_u = 1.59576912160573071176f * x * (x * x * 0.044715f + 1.f);
  return x * gelu_inverse(1.f + expf(-twice_u));
}

struct HalfGelu {
  // Φ(−a), 0 ≤ a ≤ 12.5.
  static __device__ __forceinline__ float lower_tail(float a) {
    float p = -1.3646127e-06f;
    p = fmaf(p, a, 5.1139323e-05f), p = fmaf(p, a, -0.00083962665f), p = fmaf(p, a, 0.008118628f);
    p = fmaf(p, a, -0.05311216f), p = fmaf(p, a, -0.45932722f), p = fmaf(p, a, -1.1509441f);
    return ptx::ex2(fmaf(p, a, -1.f));
  }
  static __device__ __forceinline__ float gelu(float x) {
    const float a = fabsf(x) > 12.5f ? 12.5f : fabsf(x);
    return fmaf(-a, lower_tail(a), fmaxf(x, 0.f));
  }
  // σ(2·u), u = √(2/π)·(x + 0.044715·x³).
  static __device__ __forceinline__ float gate(float x) {
    return ptx::rcp(1.f + ptx::ex2(x * fmaf(x * x, -0.10294324f, -2.3022082f)));
  }
  static __device__ __forceinline__ float gelu_tanh(float a) {
    const float x = a < -30.f ? -30.f : a;
    return x * gate(x);
  }
};

}  // namespace tg::cuda
