#include "backends/cuda/attention/backward/backward_launch_sm90.cuh"

namespace tg::cuda::attention {

void launch_backward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work,
                          const Powers* powers) {
  if (powers) return launch_f32_backward_sm90(s, x, work, powers);
  if (work.width > 128)
    launch_wide_backward_sm90(s, x, work);
  else
    backward_sm90::launch_sizes<64, 128>(s, x, work);
}

void launch_turned_backward_sm90(const Stream& s, const AttentionCall& x, const Workspace& work,
                                 const Ropes& ropes) {
  with_16_bits(x.type, [&](auto zero) { backward_sm90::launch_turned<decltype(zero)>(s, x, work, ropes); });
}

}  // namespace tg::cuda::attention
