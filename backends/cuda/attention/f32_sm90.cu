// f32 on Hopper, as f16 terms (split_terms.cu): two terms have the accuracy of f32, one term has TF32's 10
// bits of fraction.
#include "backends/cuda/attention/backward/backward_launch_sm90.cuh"
#include "backends/cuda/attention/forward/forward_sm90.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_f32_forward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work,
                             const Powers* powers) {
  forward_sm90::with_f32_shape(
      x, [&](auto shape) { forward_sm90::launch<__half, decltype(shape), any>(s, x, x.L, work, powers); });
}

void launch_f32_backward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work,
                              const Powers* powers) {
  using namespace backward_sm90;
  with_constant<64, 128>(work.width, [&](auto size) {
    if (is_of_two_terms(x))
      launch_size<__half, size, two_terms>(s, x, work, powers);
    else
      launch_size<__half, size, one_term>(s, x, work, powers);
  });
}

}  // namespace tg::cuda::attention
