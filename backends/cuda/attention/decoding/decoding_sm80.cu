// Decoding of bf16 and f16, heads to 256.
#include "backends/cuda/attention/decoding/decoding_apart_sm80.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_decoding(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers*) {
  if (decoding::is_of_latents(x)) return launch_latent_decoding(s, x, work);
  if (x.type == DType::f32) return launch_f32_decoding(s, x, work);
  if (x.table) return launch_paged_decoding(s, x, work);
  const auto ranges = decoding::ranges_in_one_piece(x);
  if (decoding::is_apart(x, work.parts, s.gpu))
    return decoding::launch_apart<decoding::InOnePiece>(s, x, work, ranges);
  decoding::launch_on_tensor_cores<decoding::InOnePiece>(s, x, work, ranges);
}

}  // namespace tg::cuda::attention
