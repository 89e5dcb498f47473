// The backward of bf16 and f16 on tensor cores for heads to 128, in two passes. 96 has no kernels of its own:
// they take long to compile, and only few or short sequences come here.
#include "backends/cuda/attention/backward/backward_two_passes_sm80.cuh"

namespace tg::cuda::attention {

void launch_two_passes(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers*) {
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    with_shape<32, 64, 128>(x, [&](auto size, auto, auto options) {
      two_passes::launch_passes<S, S, of_16_bits, size, options>(s, x, work, nullptr);
    });
  });
}

}  // namespace tg::cuda::attention
