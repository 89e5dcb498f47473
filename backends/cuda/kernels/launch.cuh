// What differs between CUDA C++ and plain C++ in a kernel's file, but for keywords: launches and dynamic
// shared memory. With these, and ptx_sm80.cuh for instructions, an ordinary compiler reads every kernel.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "backends/cuda/kernel.h"

// Declares `unsigned char name[]`, the dynamic shared memory of the block, aligned to so many bytes.
#ifndef TG_DYNAMIC_SHARED  // the emulator's <cuda_runtime.h> has its own
#define TG_DYNAMIC_SHARED(name, alignment) \
  extern __shared__ __align__(alignment)   \
  unsigned char name[]
#endif

namespace tg::cuda {

struct LaunchShape {
  dim3 grid, block;
  std::size_t shared;  // bytes of dynamic shared memory

  LaunchShape(dim3 grid, dim3 block, std::size_t shared = 0) : grid(grid), block(block), shared(shared) {}
};

// Lets a kernel have so many bytes of dynamic shared memory, where that takes a word.
template <class... P>
void allow_shared(void (*kernel)(P...), std::size_t bytes) {
  if (bytes > std::size_t{48} << 10)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

// kernel<<<grid, block, shared, s.stream>>>(args...), with more than 48 KiB of shared memory where it asks
// for it. Errors are found by the executor.
template <class... P>
void launch_kernel(const Stream& s, const LaunchShape& shape, void (*kernel)(P...),
                   const std::type_identity_t<P>&... args) {
  allow_shared(kernel, shape.shared);
  void* pointers[] = {const_cast<void*>(static_cast<const void*>(&args))...};
  cudaLaunchKernel(kernel, shape.grid, shape.block, pointers, shape.shared, s.stream);
}

}  // namespace tg::cuda
