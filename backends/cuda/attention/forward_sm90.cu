// The forward of bf16 and f16 on Hopper.
#include "backends/cuda/attention/forward_sm90.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_forward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work,
                         const Powers* powers) {
  if (powers) return launch_f32_forward_sm90(s, x, work, powers);
  if (x.d > 256 || x.dv > 256) return launch_wide_forward_sm90(s, x, work);
  const AttentionCall rows = with_heads_as_rows(x);
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    with_constant<none, any>(x.softcap == 0 && x.scale > 0 ? none : any, [&](auto options) {
      forward_sm90::with_shape(rows, [&](auto shape) {
        forward_sm90::launch<S, decltype(shape), options>(s, rows, x.L, work, nullptr);
      });
    });
  });
}

}  // namespace tg::cuda::attention
