// The forward of bf16 and f16 with heads wider than 256 on Hopper.
#include "backends/cuda/attention/forward_576_sm90.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_wide_forward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work) {
  using namespace forward_576_sm90;
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    with_constant<none, any>(x.softcap == 0 && x.scale > 0 ? none : any, [&](auto options) {
      if (values_are_keys(x))
        launch<S, Shape<true>, options>(s, x, work.taken);
      else
        launch<S, Shape<false>, options>(s, x, work.taken);
    });
  });
}

}  // namespace tg::cuda::attention
