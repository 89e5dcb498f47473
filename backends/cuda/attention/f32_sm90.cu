// f32 on Hopper, as f16 terms (split_terms.cu): two terms have the accuracy of f32, one term has TF32's 10 bits of
// fraction.
#include "backends/cuda/attention/forward_sm90.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_f32_forward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work,
                             const Powers* powers) {
  with_constant<none, any>(x.softcap == 0 && x.scale > 0 ? none : any, [&](auto options) {
    forward_sm90::with_f32_shape(x, [&](auto shape) {
      forward_sm90::launch<__half, float, decltype(shape), options>(s, x, work.counter, powers);
    });
  });
}

}  // namespace tg::cuda::attention
