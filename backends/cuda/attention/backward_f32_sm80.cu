// The backward of attention in f32 on tensor cores, with the error of f32.
#include "backends/cuda/attention/backward_f32_sm80.cuh"

namespace tg::cuda {

void launch_f32_backward(const Stream& s, const Attention& x, const Work& work) {
  launch_gradients<2>(s, x, work);
}

}  // namespace tg::cuda
