// Decoding of latents in bf16 and f16, keys to 576, of which values to 512, in one piece or in pages.
#include "backends/cuda/attention/decoding/decoding_latent_sm80.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_latent_decoding(const Stream& s, const AttentionCall& x, const Workspace& work) {
  with_16_bits(x.type, [&](auto zero) {
    with_constant<none, any>(has_plain_scores(x) ? none : any, [&](auto options) {
      decoding::launch_latents<decltype(zero), options>(s, x, work);
    });
  });
}

}  // namespace tg::cuda::attention
