// The forward of f32 on tensor cores, with the error of f32.
#include "backends/cuda/attention/forward_f32_sm80.cuh"

namespace tg::cuda::attention {

void launch_f32_forward(const Stream& s, const AttentionCall& x, const Powers* powers) {
  forward_f32::launch<2>(s, x, powers);
}

}  // namespace tg::cuda::attention
