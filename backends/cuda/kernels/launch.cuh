// Wraps launches and dynamic shared memory. Apart from keywords and the instructions in ptx_sm80.cuh, only
// these constructs of kernel files differ between CUDA C++ and plain C++. If they are replaced, an ordinary
// compiler can compile every kernel.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>

#include "backends/cuda/runtime/kernel.h"
#include "backends/cuda/tile/ptx_sm90.cuh"

// Declares `unsigned char name[]`, the block's dynamic shared memory, with this alignment in bytes.
#ifndef TG_DYNAMIC_SHARED  // the emulator's <cuda_runtime.h> defines its own
#define TG_DYNAMIC_SHARED(name, alignment) \
  extern __shared__ __align__(alignment)   \
  unsigned char name[]
#endif

namespace tg::cuda {

struct LaunchShape {
  dim3 grid, block;
  std::size_t shared;  // bytes of dynamic shared memory
  // On Hopper, the kernel may begin before the previous kernel has finished. Each of its threads must wait
  // for the previous kernel (begin_early or wait_for_kernel_before).
  bool early = false;
  // On Hopper, the number of adjacent blocks in x that form a cluster. They run at the same time and can
  // access each other's shared memory.
  unsigned cluster = 1;

  LaunchShape(dim3 grid, dim3 block, std::size_t shared = 0) : grid(grid), block(block), shared(shared) {}
};

// Opts a kernel in to this many bytes of dynamic shared memory if necessary.
template <class... P>
void allow_shared(void (*kernel)(P...), std::size_t bytes) {
  if (bytes > std::size_t{48} << 10)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

// kernel<<<grid, block, shared, s.stream>>>(args...), also with more than 48 KiB of shared memory. The
// executor detects errors.
template <class... P>
void launch_kernel(const Stream& s, const LaunchShape& shape, void (*kernel)(P...),
                   const std::type_identity_t<P>&... args) {
  allow_shared(kernel, shape.shared);
  cudaLaunchAttribute attributes[2]{};
  unsigned count = 0;
  if (shape.early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {shape.cluster, 1, 1};
  }
  const cudaLaunchConfig_t config{shape.grid, shape.block, shape.shared, s.stream, attributes, count};
  cudaLaunchKernelEx(&config, kernel, args...);
}

// Launches a kernel that begins with begin_early(). This reduces the cost of consecutive short kernels.
template <class... P>
void launch_early(const Stream& s, LaunchShape shape, void (*kernel)(P...),
                  const std::type_identity_t<P>&... args) {
  shape.early = s.gpu.hopper;
  launch_kernel(s, shape, kernel, args...);
}

// Returns the number of pairs of blocks that can run at the same time, at most the number of tiles. Each pair
// processes tiles one after another.
inline LaunchShape pairs_of_blocks(const Gpu& gpu, int tiles, unsigned threads, std::size_t shared) {
  const int pairs = std::clamp(gpu.processors / 2, 1, tiles);
  LaunchShape shape(dim3(static_cast<unsigned>(2 * pairs)), dim3(threads), shared);
  shape.cluster = 2;
  return shape;
}

// Lets the next kernel begin. The next kernel waits in wait_for_kernel_before() until this kernel has
// finished.
__device__ __forceinline__ void let_next_kernel_begin() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::let_next_kernel_begin();
#endif
}
// All threads must call it, including those without work. Before the call, a kernel may only read operands
// for which is_constant() holds. Reading them early hides memory latency.
__device__ __forceinline__ void wait_for_kernel_before() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::wait_for_kernel_before();
#endif
}
// Calls both functions. A kernel calls it before anything that depends on the contents of memory.
__device__ __forceinline__ void begin_early() {
  let_next_kernel_begin();
  wait_for_kernel_before();
}

}  // namespace tg::cuda
