// gelu and gelu_tanh as in pointwise_source.h, with the same roundings: a product whose kernel computes them
// leaves the bits that a step of their own would.
#pragma once

namespace tg::cuda {

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
  const float twice_u = 1.59576912160573071176f * a * (a * a * 0.044715f + 1.f);
  return a * gelu_inverse(1.f + expf(-twice_u));
}

}  // namespace tg::cuda
