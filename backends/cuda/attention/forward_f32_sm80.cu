// The forward of f32 on tensor cores: with the error of f32, or numbers rounded to TF32's 10 bits of
// fraction.
#include "backends/cuda/attention/forward_sm80.cuh"

namespace tg::cuda::attention {

void launch_f32_forward(const Stream& s, const AttentionCall& x, const Powers* powers) {
  with_options(x, [&](auto options) {
    with_split_size(x, [&](auto size) {
      x.tf32 ? forward::launch<__half, float, one_term, size, size, options>(s, x, powers)
             : forward::launch<__half, float, two_terms, size, size, options>(s, x, powers);
    });
  });
}

}  // namespace tg::cuda::attention
