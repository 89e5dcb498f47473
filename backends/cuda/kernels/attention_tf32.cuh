// What the kernels of attention in f32 on tensor cores share: their variants. Each file compiles those of one
// number of terms, TF32 or 3×TF32.
#pragma once

#include "backends/cuda/kernels/attention_mma.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/kernels/tiles_tf32.cuh"

namespace tg::cuda::attn {

// Calls f with the head size and the options as constants.
template <class F>
void with_tf32_variant(const Attention& x, F&& f) {
  const auto sized = [&](auto options) {
    const int most = x.d > x.dv ? x.d : x.dv;
    most <= 32   ? f(std::integral_constant<int, 32>(), options)
    : most <= 64 ? f(std::integral_constant<int, 64>(), options)
                 : f(std::integral_constant<int, 128>(), options);
  };
  with_options(x, sized);
}

}  // namespace tg::cuda::attn
