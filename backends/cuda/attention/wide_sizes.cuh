// Heads beyond 128 on tensor cores: the sizes they are padded to.
#pragma once

#include <type_traits>

#include "backends/cuda/attention/attention.cuh"

namespace tg::cuda::attn {

// Calls f with the sizes for d and dv as constants.
template <class F>
auto with_wide_sizes(const Attention& x, F&& f) {
  const auto sizes = [&](auto d, auto dv) { return f(d, dv); };
  if (x.d <= 192 && x.dv <= 128)
    return sizes(std::integral_constant<int, 192>(), std::integral_constant<int, 128>());
  if (x.d <= 256 && x.dv <= 256)
    return sizes(std::integral_constant<int, 256>(), std::integral_constant<int, 256>());
  return sizes(std::integral_constant<int, 576>(), std::integral_constant<int, 512>());
}

}  // namespace tg::cuda::attn
