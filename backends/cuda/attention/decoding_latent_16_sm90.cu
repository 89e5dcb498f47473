// Decoding of latents in bf16 and f16 by wgmma, keys to 576, of which values to 512, of at most 16 heads.
#include "backends/cuda/attention/decoding_latent_16_sm90.cuh"

namespace tg::cuda::attention::latents_sm90 {

void launch_few_heads(const cuda::Stream& s, const AttentionCall& x, const Workspace& work) {
  with_16_bits(x.type, [&](auto zero) {
    using namespace latents_16_sm90;
    using S = decltype(zero);
    launch_items<S>(s, x, work, At::rows, At::threads, Shared::bytes, attend<S>);
  });
}

}  // namespace tg::cuda::attention::latents_sm90
