// Tiles staged in shared memory. While the block processes one tile, copies of the next tiles are in flight
// (cp.async).
#pragma once

#include "backends/cuda/tile/ptx_sm80.cuh"

namespace tg::cuda::tile {

__device__ __forceinline__ void commit() {
  ptx::cp_async_commit();
}
// Waits for the thread's copies.
__device__ __forceinline__ void wait() {
  ptx::cp_async_wait<0>();
}

// One or two stages. acquire(n) starts the copies of tile n into its stage.
template <class Acquire>
struct Pipeline {
  Acquire acquire;
  int stages, end;  // number of stages; end of the tile range

  __device__ __forceinline__ Pipeline(int stages, int begin, int end, Acquire acquire)
      : acquire(acquire), stages(stages), end(end) {
    if (begin < end) acquire(begin);
  }
  // Waits until the whole block has finished the previous tile and tile n has arrived.
  __device__ __forceinline__ void wait(int n) {
    tile::wait();
    __syncthreads();
    if (stages == 2 && n + 1 < end) acquire(n + 1);
  }
  __device__ __forceinline__ void wait_for_second(int) {}
  // Reports that the warp no longer needs tile n.
  __device__ __forceinline__ void release(int n) {
    if (stages == 2 || n + 1 >= end) return;
    __syncthreads();
    acquire(n + 1);
  }
};

// One stage for two operands that are used alternately. While the block processes the first operand of a
// tile, the second operand is copied. While it processes the second operand, the first operand of the next
// tile is copied. `first` and `second` start these copies.
template <class First, class Second>
struct AlternatingPipeline {
  First first;
  Second second;
  int end;  // end of the tile range

  __device__ __forceinline__ AlternatingPipeline(int begin, int end, First first, Second second)
      : first(first), second(second), end(end) {
    if (begin < end) first(begin);
  }
  // Waits until the whole block has finished the previous tile's second operand and tile n's first operand
  // has arrived.
  __device__ __forceinline__ void wait(int n) {
    tile::wait();
    __syncthreads();
    second(n);
  }
  // Waits until the whole block has finished tile n's first operand and the second operand has arrived.
  __device__ __forceinline__ void wait_for_second(int n) {
    tile::wait();
    __syncthreads();
    if (n + 1 < end) first(n + 1);
  }
  __device__ __forceinline__ void release(int) {}
};

}  // namespace tg::cuda::tile
