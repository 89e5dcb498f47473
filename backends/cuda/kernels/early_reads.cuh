// Kernels that read operands which no step of the program writes, such as indices and weights, before the
// kernel before them has ended: one wait for memory less.
#pragma once

#include "backends/cuda/kernels/launch.cuh"

namespace tg::cuda {

// Whether no step of the call's program writes the operand.
inline bool is_constant(const Arg& a, const Call& c) {
  return c.written && !c.written->overlaps(a);
}

// begin_early() in its two halves. Between them only what is_constant() may be read.
__device__ __forceinline__ void let_next_kernel_begin() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::let_next_kernel_begin();
#endif
}
__device__ __forceinline__ void wait_for_kernel_before() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::wait_for_kernel_before();
#endif
}

}  // namespace tg::cuda
