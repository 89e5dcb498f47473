// Tiles that pass by in stages of shared memory: while the block works on one, copies of the next ones are on
// their way (cp.async).
#pragma once

#include "backends/cuda/tile/ptx_sm80.cuh"

namespace tg::cuda::tile {

__device__ __forceinline__ void commit() {
  ptx::cp_async_commit();
}
// Until the thread's copies are there.
__device__ __forceinline__ void wait() {
  ptx::cp_async_wait<0>();
}

// One or two stages. acquire(n) asks for tile n's copies, into its stage.
template <class Acquire>
struct Pipeline {
  Acquire acquire;
  int stages, end;  // stages; past the last tile

  __device__ __forceinline__ Pipeline(int stages, int begin, int end, Acquire acquire)
      : acquire(acquire), stages(stages), end(end) {
    if (begin < end) acquire(begin);
  }
  // Until tile n is there for the whole block, which then has left the tile before.
  __device__ __forceinline__ void wait(int n) {
    tile::wait();
    __syncthreads();
    if (stages == 2 && n + 1 < end) acquire(n + 1);
  }
  __device__ __forceinline__ void wait_for_second(int) {}
  // The warp has no more use for tile n.
  __device__ __forceinline__ void release(int n) {
    if (stages == 2 || n + 1 >= end) return;
    __syncthreads();
    acquire(n + 1);
  }
};

// One stage for two operands that are used one after the other: while the block works on the first of a tile,
// copies of its second are on their way, and then those of the next tile's first. `first` and `second` ask
// for them.
template <class First, class Second>
struct AlternatingPipeline {
  First first;
  Second second;
  int end;  // past the last tile

  __device__ __forceinline__ AlternatingPipeline(int begin, int end, First first, Second second)
      : first(first), second(second), end(end) {
    if (begin < end) first(begin);
  }
  // Until tile n's first operand is there for the whole block, which then has left the second of the tile
  // before.
  __device__ __forceinline__ void wait(int n) {
    tile::wait();
    __syncthreads();
    second(n);
  }
  // The same of its second, when the block has left its first.
  __device__ __forceinline__ void wait_for_second(int n) {
    tile::wait();
    __syncthreads();
    if (n + 1 < end) first(n + 1);
  }
  __device__ __forceinline__ void release(int) {}
};

}  // namespace tg::cuda::tile
