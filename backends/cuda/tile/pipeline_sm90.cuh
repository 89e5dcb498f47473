// Tiles that two roles of a block exchange through stages of shared memory. A producer warp fills a stage by
// bulk copies, and consumer warps read it. Each role waits for the other at the barriers of the stage.
#pragma once

#include "backends/cuda/tile/ptx_sm90.cuh"

namespace tg::cuda::tile {

using ptx::u32;

// A ring of `Stages` stages. Both roles count the uses. Barriers start at `base`, with 16 bytes per stage.
template <int Stages>
struct Ring {
  static constexpr int bytes = Stages * 16;
  u32 base;

  __device__ __forceinline__ u32 full(u32 use) const { return base + use % Stages * 16; }
  __device__ __forceinline__ u32 empty(u32 use) const { return full(use) + 8; }
  __device__ __forceinline__ static int stage(u32 use) { return use % Stages; }

  // Called by one thread before a block barrier. A stage is released by `consumers` warps and filled by
  // `producers`.
  __device__ __forceinline__ void init(int consumers, int producers = 1) const {
    for (u32 n = 0; n < Stages; ++n)
      ptx::mbarrier_init(full(n), producers), ptx::mbarrier_init(empty(n), consumers);
  }
  // For the producer. acquire() waits until consumers have released the stage. Then one thread calls
  // expect(). It announces that copies of `size` bytes will complete at full(use).
  __device__ __forceinline__ void acquire(u32 use) const {
    ptx::mbarrier_wait(empty(use), use / Stages % 2 ^ 1);
  }
  // The same as acquire() if some or all consumers are threads of another block of the cluster.
  __device__ __forceinline__ void acquire_of_cluster(u32 use) const {
    ptx::mbarrier_wait_cluster(empty(use), use / Stages % 2 ^ 1);
  }
  __device__ __forceinline__ void expect(u32 use, int size) const {
    ptx::mbarrier_arrive_expect(full(use), size);
  }
  // Announces that ordinary stores have filled a stage.
  __device__ __forceinline__ void announce(u32 use) const { ptx::mbarrier_arrive(full(use)); }
  __device__ __forceinline__ void announce_by_warp(u32 use) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) announce(use);
  }
  // For a consumer. wait() waits until the stage is full. release() reports that the warp no longer needs it.
  __device__ __forceinline__ void wait(u32 use) const { ptx::mbarrier_wait(full(use), use / Stages % 2); }
  __device__ __forceinline__ void release(u32 use) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) release_by_thread(use);
  }
  // The same as release() for a producer in block `rank` of the cluster.
  __device__ __forceinline__ void release_to(u32 rank, u32 use) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive_at(ptx::shared_of(empty(use), rank));
  }
  // The same as release() for the producers of both blocks of a cluster of two.
  __device__ __forceinline__ void release_to_both(u32 use) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) release_by_thread(use);
    if (threadIdx.x % 32 == 1) ptx::mbarrier_arrive_at(ptx::shared_of(empty(use), ptx::cluster_rank() ^ 1));
  }
  // The same as release() for a role of a single thread.
  __device__ __forceinline__ void release_by_thread(u32 use) const { ptx::mbarrier_arrive(empty(use)); }
};

// Stages for tiles of two operands in shared memory, and their barriers.
template <class A, class B, int stages>
struct OperandStages {
  using Stages = Ring<stages>;
  static constexpr int ring_at = stages * (A::bytes + B::bytes), bytes = ring_at + Stages::bytes;
  u32 base;
  __device__ A a(u32 use) const { return {base + Stages::stage(use) * A::bytes}; }
  __device__ B b(u32 use) const { return {base + stages * A::bytes + Stages::stage(use) * B::bytes}; }
  __device__ Stages ring() const { return {base + ring_at}; }
};

// Runs the roles of a persistent block in a cluster of two. One thread copies by load(rank of the block), and
// two warpgroups multiply by consume(warpgroup, rank).
inline constexpr int pair_threads = 384;
template <class Stages, class Load, class Consume>
__device__ __forceinline__ void run_pair(const Stages& ring, int consumers, Load&& load, Consume&& consume) {
  if (threadIdx.x == 0) {
    ring.init(consumers);
    ptx::fence_mbarrier_init();
  }
  ptx::cluster_arrive(), ptx::cluster_wait();
  const u32 rank = ptx::cluster_rank();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (group == 0) {
    ptx::give_registers<40>();
    if (threadIdx.x == 0) load(rank);
    __syncwarp();
  } else {
    ptx::take_registers<232>();
    consume(group - 1, rank);
  }
  ptx::cluster_arrive(), ptx::cluster_wait();  // no block may exit while another copies to it
}

}  // namespace tg::cuda::tile
