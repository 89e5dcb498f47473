// The forward of bf16 and f16 with heads wider than 256 on Hopper.
#include "backends/cuda/attention/forward/forward_576_sm90.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_wide_forward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work) {
  using namespace forward_576_sm90;
  const AttentionCall rows = with_heads_as_rows(x);
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    if (values_are_keys(x))
      launch<S, Shape<true>>(s, rows, x.L, work);
    else
      launch<S, Shape<false>>(s, rows, x.L, work);
  });
}

}  // namespace tg::cuda::attention
