// The same of a cache in pages.
#include "backends/cuda/attention/decoding/decoding_apart_sm80.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_paged_decoding(const Stream& s, const AttentionCall& x, const Workspace& work) {
  const auto ranges = decoding::ranges_in_pages(x);
  if (decoding::is_apart(x, work.parts, s.gpu))
    return decoding::launch_apart<decoding::InPages>(s, x, work, ranges);
  decoding::launch_on_tensor_cores<decoding::InPages>(s, x, work, ranges);
}

}  // namespace tg::cuda::attention
