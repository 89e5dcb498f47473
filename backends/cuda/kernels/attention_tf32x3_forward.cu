// The forward of attention in f32 on tensor cores in 3×TF32: the error of f32.
#include "backends/cuda/kernels/attention_tf32_forward.cuh"

namespace tg::cuda {

void launch_tf32x3_forward(const Stream& s, const Attention& x) {
  launch<tiles::tf32x3>(s, x);
}

}  // namespace tg::cuda
