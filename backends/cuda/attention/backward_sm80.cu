// The backward of bf16 and f16 on tensor cores for heads to 128, in two passes.
#include "backends/cuda/attention/backward_two_passes_sm80.cuh"

namespace tg::cuda::attention {

void launch_backward(const Stream& s, const AttentionCall& x, const Workspace& work) {
  const auto run = [&](auto zero) {
    using S = decltype(zero);
    // 96 has no kernels of its own: they take long to compile, and only few or short sequences come here.
    with_size<32, 64, 128>(x, [&](auto size) {
      with_options(x, [&](auto options) {
        two_passes::launch_passes<S, S, of_16_bits, size, options>(s, x, work, nullptr);
      });
    });
  };
  x.type == DType::bf16 ? run(__nv_bfloat16()) : run(__half());
}

}  // namespace tg::cuda::attention
