// The forward of attention in f32 on tensor cores, with the error of f32.
#include "backends/cuda/attention/forward_f32_sm80.cuh"

namespace tg::cuda {

void launch_f32_forward(const Stream& s, const Attention& x) {
  launch<2>(s, x);
}

}  // namespace tg::cuda
