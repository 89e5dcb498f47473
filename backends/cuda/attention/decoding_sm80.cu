// Decoding of bf16 and f16, heads to 128.
#include "backends/cuda/attention/decoding_sm80.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_decoding(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers*) {
  with_16_bits(x.type, [&](auto zero) {
    with_constant<none, any>(has_plain_scores(x) ? none : any, [&](auto options) {
      decoding::with_shape(x, s.gpu, [&](auto shape) {
        decoding::launch<decltype(zero), decltype(shape), options>(s, x, work);
      });
    });
  });
}

}  // namespace tg::cuda::attention
