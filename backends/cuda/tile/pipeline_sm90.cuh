// Tiles that pass through stages of shared memory between two roles of a block: a producer warp fills a stage
// by bulk copies and consumer warps read it, each waiting for the other at barriers of the stage.
#pragma once

#include "backends/cuda/tile/ptx_sm90.cuh"

namespace tg::cuda::tile {

using ptx::u32;

// `Stages` stages, used in turn. Both roles count the uses; barriers are at `base`, 16 bytes for each stage.
template <int Stages>
struct Ring {
  static constexpr int bytes = Stages * 16;
  u32 base;

  __device__ __forceinline__ u32 full(u32 use) const { return base + use % Stages * 16; }
  __device__ __forceinline__ u32 empty(u32 use) const { return full(use) + 8; }
  __device__ __forceinline__ static int stage(u32 use) { return use % Stages; }

  // By one thread, before a barrier of the block: how many warps release a stage, and how many fill it.
  __device__ __forceinline__ void init(int consumers, int producers = 1) const {
    for (u32 n = 0; n < Stages; ++n)
      ptx::mbarrier_init(full(n), producers), ptx::mbarrier_init(empty(n), consumers);
  }
  // The producer: until consumers have left the stage; then it is announced that `size` bytes of copies to it
  // end at full(use), by one thread.
  __device__ __forceinline__ void acquire(u32 use) const {
    ptx::mbarrier_wait(empty(use), use / Stages % 2 ^ 1);
  }
  // The same where consumers are, at least in part, threads of another block of the cluster.
  __device__ __forceinline__ void acquire_of_cluster(u32 use) const {
    ptx::mbarrier_wait_cluster(empty(use), use / Stages % 2 ^ 1);
  }
  __device__ __forceinline__ void expect(u32 use, int size) const {
    ptx::mbarrier_arrive_expect(full(use), size);
  }
  // The stage has been written by ordinary stores.
  __device__ __forceinline__ void announce(u32 use) const { ptx::mbarrier_arrive(full(use)); }
  __device__ __forceinline__ void announce_by_warp(u32 use) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) announce(use);
  }
  // A consumer: until the stage is full; and the warp has no more use for it.
  __device__ __forceinline__ void wait(u32 use) const { ptx::mbarrier_wait(full(use), use / Stages % 2); }
  __device__ __forceinline__ void release(u32 use) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) release_alone(use);
  }
  // The same, to a producer in that block of the cluster.
  __device__ __forceinline__ void release_to(u32 rank, u32 use) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive_at(ptx::shared_of(empty(use), rank));
  }
  // The same, to the producers of both blocks of a cluster of two.
  __device__ __forceinline__ void release_to_both(u32 use) const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) release_alone(use);
    if (threadIdx.x % 32 == 1) ptx::mbarrier_arrive_at(ptx::shared_of(empty(use), ptx::cluster_rank() ^ 1));
  }
  // The same, of a role that is one thread.
  __device__ __forceinline__ void release_alone(u32 use) const { ptx::mbarrier_arrive(empty(use)); }
};

// Stages of tiles of two operands in shared memory, and their barriers.
template <class A, class B, int stages>
struct OperandStages {
  using Stages = Ring<stages>;
  static constexpr int ring_at = stages * (A::bytes + B::bytes), bytes = ring_at + Stages::bytes;
  u32 base;
  __device__ A a(u32 use) const { return {base + Stages::stage(use) * A::bytes}; }
  __device__ B b(u32 use) const { return {base + stages * A::bytes + Stages::stage(use) * B::bytes}; }
  __device__ Stages ring() const { return {base + ring_at}; }
};

// The roles of a block of a pair (a cluster of two), which stays on its multiprocessor and takes one tile
// after the other: one thread copies, load(rank of the block), and two warpgroups multiply,
// consume(warpgroup, rank).
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
  ptx::cluster_arrive(), ptx::cluster_wait();  // nobody copies to a block that has ended
}

}  // namespace tg::cuda::tile
