// The backward of f32 on tensor cores: with the error of f32, or numbers rounded to TF32's 10 bits of
// fraction.
#include "backends/cuda/attention/backward_two_passes_sm80.cuh"

namespace tg::cuda::attention {

void launch_f32_backward(const Stream& s, const AttentionCall& x, const Workspace& work,
                         const Powers* powers) {
  using namespace two_passes;
  with_split_size(x, [&](auto size) {
    with_options(x, [&](auto options) {
      x.tf32 ? launch_passes<__half, float, one_term, size, options>(s, x, work, powers)
             : launch_passes<__half, float, two_terms, size, options>(s, x, work, powers);
    });
  });
}

}  // namespace tg::cuda::attention
