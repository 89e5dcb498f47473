// The backward of bf16 and f16 on tensor cores for heads to 128, in two passes.
#include "backends/cuda/attention/backward_two_passes_sm80.cuh"

namespace tg::cuda::attention {

void launch_two_passes(const Stream& s, const AttentionCall& x, const Workspace& work) {
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    with_size(x, [&](auto size) {
      with_options(x, [&](auto options) {
        two_passes::launch_passes<S, S, of_16_bits, size, options>(s, x, work, nullptr);
      });
    });
  });
}

}  // namespace tg::cuda::attention
