// The forward of bf16 and f16 on tensor cores for heads to 128.
#include "backends/cuda/attention/forward_sm80.cuh"

namespace tg::cuda::attention {

void launch_forward(const Stream& s, const AttentionCall& x) {
  const auto run = [&](auto zero) {
    using S = decltype(zero);
    with_options(x, [&](auto options) {
      with_size<32, 64, 96, 128>(
          x, [&](auto size) { forward::launch<S, S, of_16_bits, size, size, options>(s, x, nullptr); });
    });
  };
  x.type == DType::bf16 ? run(__nv_bfloat16()) : run(__half());
}

}  // namespace tg::cuda::attention
