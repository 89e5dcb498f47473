// The forward of bf16 and f16 on tensor cores.
#include "backends/cuda/attention/forward/forward_sm80.cuh"

namespace tg::cuda::attention {

void launch_forward(const Stream& s, const AttentionCall& x, const Workspace&, const Powers*) {
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    with_shape<32, 64, 96, 128, 192, 256, 576>(x, [&](auto d, auto dv, auto options) {
      forward::launch<S, S, of_16_bits, d, dv, options>(s, x, nullptr);
    });
  });
}

}  // namespace tg::cuda::attention
