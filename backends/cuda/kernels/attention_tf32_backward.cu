// The backward of attention in f32 on tensor cores in TF32: operands rounded to 10 bits of fraction.
#include "backends/cuda/kernels/attention_tf32_backward.cuh"

namespace tg::cuda {

void launch_tf32_backward(const Stream& s, const Attention& x, const Work& work) {
  launch_gradients<tiles::tf32>(s, x, work);
}

}  // namespace tg::cuda
