#include "backends/cuda/attention/backward/backward_launch_sm90.cuh"

namespace tg::cuda::attention {

void launch_wide_backward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work) {
  backward_sm90::launch_sizes<192, 256>(s, x, work);
}

}  // namespace tg::cuda::attention
