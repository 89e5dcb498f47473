// Decoding of latents in bf16 and f16 by wgmma, keys to 576, of which values to 512, of 16 heads and more.
#include "backends/cuda/attention/decoding/decoding_latent_sm90.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_latents_sm90(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers*) {
  if (decoding::takes_few_heads(x)) return latents_sm90::launch_few_heads(s, x, work);
  with_16_bits(x.type, [&](auto zero) { latents_sm90::launch<decltype(zero)>(s, x, work); });
}

}  // namespace tg::cuda::attention
