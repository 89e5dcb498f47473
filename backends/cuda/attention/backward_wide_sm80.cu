// The backward on tensor cores for heads beyond 128: in two passes, or the first of them alone, which then
// adds up z_Q too.
#include "backends/cuda/attention/backward_one_pass_sm80.cuh"

namespace tg::cuda::attention {

using namespace one_pass;

void launch_wide_key_gradients(const Stream& s, const AttentionCall& x, const Workspace& work) {
  with_wide_sizes(x, [&](auto d, auto dv) { launch<by_key, d, dv, any>(s, x, work); });
}

void launch_wide_query_gradients(const Stream& s, const AttentionCall& x, const Workspace& work) {
  with_wide_sizes(x, [&](auto d, auto dv) { launch<by_query, d, dv, any>(s, x, work); });
}

}  // namespace tg::cuda::attention
