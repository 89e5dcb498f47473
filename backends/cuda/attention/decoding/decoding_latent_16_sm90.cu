// Decoding of latents in bf16 and f16 by wgmma, keys to 576, of which values to 512, of at most 16 heads.
#include "backends/cuda/attention/decoding/decoding_latent_16_sm90.cuh"

namespace tg::cuda::attention::latents_sm90 {

void launch_few_heads(const cuda::Stream& s, const AttentionCall& call, const Workspace& work) {
  using namespace latents_16_sm90;
  const AttentionCall x = decoding::in_pages(call);
  Plan plan = plan_of(x, work, At::rows);
  set_boxes(plan, x);
  with_16_bits(x.type, [&](auto zero) {
    using S = decltype(zero);
    launch_items<S>(s, x, plan, At::threads, Shared::bytes, attend<S>);
  });
}

}  // namespace tg::cuda::attention::latents_sm90
