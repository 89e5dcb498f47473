// The forward of f32 on tensor cores, numbers rounded to the 10 bits of fraction of TF32.
#include "backends/cuda/attention/forward_f32_sm80.cuh"

namespace tg::cuda::attention {

void launch_tf32_forward(const Stream& s, const AttentionCall& x, const Powers* powers) {
  forward_f32::launch<1>(s, x, powers);
}

}  // namespace tg::cuda::attention
