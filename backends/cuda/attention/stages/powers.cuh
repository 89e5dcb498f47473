// Powers of two on the device (Powers of workspace.h).
#pragma once

#include "backends/cuda/attention/workspace.h"
#include "backends/cuda/tile/accumulator.cuh"

namespace tg::cuda::attention {

// 2ᵉ, of e outside −126 … 127 the nearest that f32 has.
__device__ __forceinline__ float power_of_two(int e) {
  return __int_as_float((min(max(e, -126), 127) + 127) << 23);
}
// x ⋅ 2ᵉ
__device__ __forceinline__ float times_power_of_two(float x, int e) {
  return x * power_of_two(e / 2) * power_of_two(e - e / 2);
}
// sums ⋅ factor ⋅ 2ᵉ
template <int Rows, int Columns>
__device__ __forceinline__ void scale(tile::Accumulator<Rows, Columns>& sums, float factor, int e) {
  const float first = factor * power_of_two(e / 2), second = power_of_two(e - e / 2);
  tile::for_each(sums, [&](int, int, float& x) { x = x * first * second; });
}

}  // namespace tg::cuda::attention
