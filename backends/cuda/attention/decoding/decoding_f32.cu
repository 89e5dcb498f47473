// Decoding of f32, heads to 256, in one piece or in pages.
#include "backends/cuda/attention/decoding/decoding_f32.cuh"
#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

void launch_f32_decoding(const Stream& s, const AttentionCall& x, const Workspace& work) {
  using namespace decoding;
  if (x.table)
    launch_call<MultipliedInF32, float, InPages>(s, x, work, ranges_in_pages(x));
  else
    launch_call<MultipliedInF32, float, InOnePiece>(s, x, work, ranges_in_one_piece(x));
}

}  // namespace tg::cuda::attention
