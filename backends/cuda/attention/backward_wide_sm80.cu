// The backward of attention on tensor cores for heads beyond 128: in two passes, or the first of them alone,
// which then adds up z_Q too.
#include "backends/cuda/attention/backward_one_pass_sm80.cuh"
#include "backends/cuda/attention/wide_sizes.cuh"

namespace tg::cuda {

using namespace attn;

bool fits_wide_backward(const Attention& x, const Gpu& gpu) {
  return with_wide_sizes(x, [&](auto d, auto dv) {
    return Shared<by_key, d, dv, any>::fitting_stages(gpu.shared_per_block) > 0 &&
           Shared<by_query, d, dv, any>::fitting_stages(gpu.shared_per_block) > 0;
  });
}

void launch_wide_key_gradients(const Stream& s, const Attention& x, const Work& work) {
  with_wide_sizes(x, [&](auto d, auto dv) { launch_gradients<by_key, d, dv, any>(s, x, work); });
}

void launch_wide_query_gradients(const Stream& s, const Attention& x, const Work& work) {
  with_wide_sizes(x, [&](auto d, auto dv) { launch_gradients<by_query, d, dv, any>(s, x, work); });
}

}  // namespace tg::cuda
