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
  // The warp has no more use for tile n.
  __device__ __forceinline__ void release(int n) {
    if (stages == 2 || n + 1 >= end) return;
    __syncthreads();
    acquire(n + 1);
  }
};

}  // namespace tg::cuda::tile
