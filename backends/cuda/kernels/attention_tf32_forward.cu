// The forward of attention in f32 on tensor cores in TF32: operands rounded to 10 bits of fraction.
#include "backends/cuda/kernels/attention_tf32_forward.cuh"

namespace tg::cuda {

void launch_tf32_forward(const Stream& s, const Attention& x) {
  launch<tiles::tf32>(s, x);
}

}  // namespace tg::cuda
