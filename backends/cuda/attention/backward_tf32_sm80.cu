// The backward of f32 on tensor cores, numbers rounded to the 10 bits of fraction of TF32.
#include "backends/cuda/attention/backward_two_passes_sm80.cuh"

namespace tg::cuda::attention {

void launch_tf32_backward(const Stream& s, const AttentionCall& x, const Workspace& work,
                          const Powers* powers) {
  two_passes::launch_split<1>(s, x, work, powers);
}

}  // namespace tg::cuda::attention
