// Reads ahead: an instruction as in ptx_sm80.cuh, for kernels that begin before what they will read is
// needed.
#pragma once

namespace tg::cuda::ptx {

// What lies there to the second-level cache.
__device__ __forceinline__ void prefetch_to_second_level(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

}  // namespace tg::cuda::ptx
