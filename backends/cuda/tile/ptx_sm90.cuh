// Hopper's instructions. As in ptx_sm80.cuh, each function is one instruction. This file has bulk tile copies
// (TMA), barriers in shared memory (mbarrier) and register reallocation between warpgroups. wgmma is in
// wgmma_sm90.cuh.
#pragma once

#include <cuda.h>

#include "backends/cuda/tile/ptx_sm80.cuh"

namespace tg::cuda::ptx {

// ---- barriers in shared memory, by address; a phase ends when all expected arrivals and bytes have been
// received ----

__device__ __forceinline__ void mbarrier_init(u32 barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Makes initialized barriers visible to bulk copies.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and adds `bytes` to the number of bytes that the phase waits for.
__device__ __forceinline__ void mbarrier_arrive_expect(u32 barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Waits until the phase with this parity has ended. The first phase has parity 0, and the phase before it
// counts as ended.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@done bra end;\n"
      "bra again;\nend:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- clusters: blocks that run at the same time and can access each other's shared memory ----

// The rank of this block in its cluster.
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// A barrier for all threads of the cluster's blocks, in two steps.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// The corresponding address in the shared memory of another block of the cluster.
__device__ __forceinline__ u32 shared_of(u32 address, u32 rank) {
  u32 to;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(address), "r"(rank));
  return to;
}
// Arrives at a barrier of another block. Its address is from shared_of().
__device__ __forceinline__ void mbarrier_arrive_at(u32 cluster_address) {
  asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_address)
               : "memory");
}
// Like mbarrier_wait(), for a barrier of this block at which threads of other blocks arrive.
__device__ __forceinline__ void mbarrier_wait_cluster(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@done bra end;\nbra again;\nend:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- bulk copies to shared memory; a barrier counts their bytes ----

// Prefetches a tensor map before the first copy that uses it.
__device__ __forceinline__ void prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Copies the box of a tensor map that begins at (x, row, head, batch). Elements outside of the tensor are
// zero.
__device__ __forceinline__ void tma_load(u32 to, const CUtensorMap* map, u32 barrier, int x, int row,
                                         int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3,%4,%5,%6}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
// Like tma_load, for data that is read once. The L2 cache evicts such data first. `policy` is evict_first().
__device__ __forceinline__ void tma_load(u32 to, const CUtensorMap* map, u32 barrier, int x, int row,
                                         int head, int batch, std::uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3,%4,%5,%6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(row), "r"(head), "r"(batch), "l"(policy)
      : "memory");
}
// Like tma_load, but copies to both blocks of a cluster of two, at the same address in each block. The bytes
// count at each block's barrier.
__device__ __forceinline__ void tma_load_for_both(u32 to, const CUtensorMap* map, u32 barrier, int x, int row,
                                                  int head, int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3,%4,%5,%6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(row), "r"(head), "r"(batch), "h"(short{3})
      : "memory");
}
// Copies a box from shared memory to the tensor. Elements outside of the tensor are not written. Each copy
// belongs to a group of the thread that starts it.
__device__ __forceinline__ void tma_store(const CUtensorMap* map, u32 from, int x, int row, int head,
                                          int batch) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2,%3,%4,%5}], [%1];" ::"l"(map),
      "r"(from), "r"(x), "r"(row), "r"(head), "r"(batch)
      : "memory");
}
// Commits the thread's stores since the last call as a group.
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until all of its groups have read shared memory.
__device__ __forceinline__ void wait_for_stores() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Copies consecutive bytes. Their number and both addresses are multiples of 16.
__device__ __forceinline__ void bulk_load(u32 to, const void* from, int bytes, u32 barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Copies bytes of this block's shared memory to another block. They count at a barrier of that block. The two
// addresses in the other block are from shared_of(). The number of bytes and all addresses are multiples of
// 16.
__device__ __forceinline__ void bulk_copy_to(u32 cluster_to, u32 from, int bytes, u32 cluster_barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          cluster_to),
      "r"(from), "r"(bytes), "r"(cluster_barrier)
      : "memory");
}
// Makes the thread's writes to shared memory visible to wgmma and bulk copies.
__device__ __forceinline__ void fence_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Makes writes to global memory by other blocks visible to bulk copies of this thread. The thread must have
// acquired these writes.
__device__ __forceinline__ void fence_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// to[0 … 3] = x, stored in the L2 cache. `to` is aligned to 16 bytes.
__device__ __forceinline__ void st_global_v4(float* to, const float (&x)[4]) {
  asm volatile("st.global.cg.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]),
               "f"(x[3])
               : "memory");
}

// ---- counters in global memory that order blocks ----

// Loads a counter. Writes that other blocks made before they added to the counter are visible afterwards.
__device__ __forceinline__ int load_acquire(const int* p) {
  int x;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
  return x;
}
__device__ __forceinline__ void add_release(int* p, int x) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

// ---- programmatic dependent launch ----

// For a kernel that begins early. Waits until the previous kernel has finished and its writes are visible.
__device__ __forceinline__ void wait_for_kernel_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// If the next kernel begins early, lets it occupy multiprocessors as they become free.
__device__ __forceinline__ void let_next_kernel_begin() {
  asm volatile("griddepcontrol.launch_dependents;");
}

// ---- registers per thread, set by all threads of a warpgroup ----

template <int Registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

// ---- shared memory ----

// Stores four 8 × 8 parts of 16-bit elements. Lane 8·n + r provides the address of row r of part n (16
// bytes). Lane 4·g + t has elements (g, 2t) and (g, 2t + 1) of each part.
__device__ __forceinline__ void stmatrix(u32 address, const u32 (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(x[0]),
               "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
// Stores the same parts transposed: lane 4·g + t has elements (2t, g) and (2t + 1, g).
__device__ __forceinline__ void stmatrix_trans(u32 address, const u32 (&x)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address),
               "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

// ---- registers that wgmma uses asynchronously, without the compiler's knowledge ----

// Keeps the compiler from moving uses of the register across this point.
__device__ __forceinline__ void keep(float& x) {
  asm volatile("" : "+f"(x)::"memory");
}
__device__ __forceinline__ void keep(u32& x) {
  asm volatile("" : "+r"(x)::"memory");
}
// Keeps the address in its registers up to this point.
__device__ __forceinline__ void hold(const float* p) {
  asm volatile("" ::"l"(p));
}

}  // namespace tg::cuda::ptx
