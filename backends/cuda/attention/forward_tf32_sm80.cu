// The forward of attention in f32 on tensor cores, numbers rounded to the 10 bits of fraction of TF32.
#include "backends/cuda/attention/forward_f32_sm80.cuh"

namespace tg::cuda {

void launch_tf32_forward(const Stream& s, const Attention& x) {
  launch<1>(s, x);
}

}  // namespace tg::cuda
