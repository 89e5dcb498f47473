// The same of a cache in pages.
#include "backends/cuda/attention/decoding_sm80.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_paged_decoding(const Stream& s, const AttentionCall& x, const Workspace& work) {
  decoding::launch_on_tensor_cores<decoding::InPages>(s, x, work, decoding::ranges_in_pages(x));
}

}  // namespace tg::cuda::attention
