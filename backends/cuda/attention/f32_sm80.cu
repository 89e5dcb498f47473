// Forward and backward of f32 on tensor cores. Operands are f16 terms (split_terms.cu): two terms have the
// accuracy of f32, one term has TF32's 10 bits of fraction.
#include "backends/cuda/attention/backward/backward_two_passes_sm80.cuh"
#include "backends/cuda/attention/forward/forward_sm80.cuh"

namespace tg::cuda::attention {

void launch_f32_forward(const Stream& s, const AttentionCall& x, const Workspace&, const Powers* powers) {
  with_shape<32, 64, 128>(x, [&](auto size, auto, auto options) {
    x.tf32 ? forward::launch<__half, float, one_term, size, size, options>(s, x, powers)
           : forward::launch<__half, float, two_terms, size, size, options>(s, x, powers);
  });
}

void launch_f32_backward(const Stream& s, const AttentionCall& x, const Workspace& work,
                         const Powers* powers) {
  using namespace two_passes;
  with_shape<32, 64, 128>(x, [&](auto size, auto, auto options) {
    x.tf32 ? launch_passes<__half, float, one_term, size, options>(s, x, work, powers)
           : launch_passes<__half, float, two_terms, size, options>(s, x, work, powers);
  });
}

}  // namespace tg::cuda::attention
