// The backward of f32 on tensor cores, with the error of f32.
#include "backends/cuda/attention/backward_two_passes_sm80.cuh"

namespace tg::cuda::attention {

void launch_f32_backward(const Stream& s, const AttentionCall& x, const Workspace& work,
                         const Powers* powers) {
  two_passes::launch_split<2>(s, x, work, powers);
}

}  // namespace tg::cuda::attention
