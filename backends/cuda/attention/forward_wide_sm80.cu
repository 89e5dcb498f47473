// The forward of bf16 and f16 on tensor cores for heads beyond 128, with all options in one kernel.
#include "backends/cuda/attention/forward_sm80.cuh"

namespace tg::cuda::attention {

void launch_wide_forward(const Stream& s, const AttentionCall& x) {
  const auto run = [&](auto zero) {
    using S = decltype(zero);
    with_wide_sizes(x,
                    [&](auto d, auto dv) { forward::launch<S, S, of_16_bits, d, dv, any>(s, x, nullptr); });
  };
  x.type == DType::bf16 ? run(__nv_bfloat16()) : run(__half());
}

}  // namespace tg::cuda::attention
