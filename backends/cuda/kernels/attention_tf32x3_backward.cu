// The backward of attention in f32 on tensor cores in 3×TF32: the error of f32.
#include "backends/cuda/kernels/attention_tf32_backward.cuh"

namespace tg::cuda {

void launch_tf32x3_backward(const Stream& s, const Attention& x, const Work& work) {
  launch_gradients<tiles::tf32x3>(s, x, work);
}

}  // namespace tg::cuda
