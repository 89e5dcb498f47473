// The backward of attention in f32 on tensor cores, numbers rounded to the 10 bits of fraction of TF32.
#include "backends/cuda/attention/backward_f32_sm80.cuh"

namespace tg::cuda {

void launch_tf32_backward(const Stream& s, const Attention& x, const Work& work) {
  launch_gradients<1>(s, x, work);
}

}  // namespace tg::cuda
