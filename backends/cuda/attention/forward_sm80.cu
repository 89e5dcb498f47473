// The forward of bf16 and f16 on tensor cores. Wide heads have all options in one kernel.
#include "backends/cuda/attention/forward_sm80.cuh"

namespace tg::cuda::attention {

void launch_forward(const Stream& s, const AttentionCall& x) {
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    with_sizes<32, 64, 96, 128>(x, [&](auto d, auto dv) {
      with_options(x, [&](auto options) {
        forward::launch<S, S, of_16_bits, d, dv, d <= 128 ? options : any>(s, x, nullptr);
      });
    });
  });
}

}  // namespace tg::cuda::attention
