// Implements the instructions in backends/cuda/tile/ptx_sm90.cuh in plain C++, as PTX defines them. This file
// replaces the original because the emulator's include folder has priority.
#pragma once

#include <cuda.h>

#include "backends/cuda/tile/ptx_sm80.cuh"
#include "tests/gpu_emulator/bulk_copy.h"
#include "tests/gpu_emulator/clocks.h"
#include "tests/gpu_emulator/cluster.h"
#include "tests/gpu_emulator/early_launch.h"
#include "tests/gpu_emulator/mbarrier.h"
#include "tests/gpu_emulator/registers.h"
#include "tests/gpu_emulator/semaphore.h"
#include "tests/gpu_emulator/wgmma.h"

namespace tg::cuda::ptx {

inline void mbarrier_init(u32 barrier, int arrivals) {
  emulator::mbarrier_init(barrier, arrivals);
}
inline void fence_mbarrier_init() {
  emulator::fence_mbarrier_init();
}
inline void mbarrier_arrive(u32 barrier) {
  emulator::mbarrier_arrive(barrier);
}
inline void mbarrier_arrive_expect(u32 barrier, int bytes) {
  emulator::mbarrier_arrive_expect(barrier, bytes);
}
inline void mbarrier_wait(u32 barrier, u32 parity) {
  emulator::mbarrier_wait(barrier, parity, emulator::Scope::block);
}

inline u32 cluster_rank() {
  return emulator::here.rank;
}
inline void cluster_arrive() {
  emulator::cluster_arrive();
}
inline void cluster_wait() {
  emulator::cluster_wait();
}
inline u32 shared_of(u32 address, u32 rank) {
  return emulator::shared_of(address, rank);
}
inline void mbarrier_arrive_at(u32 cluster_address) {
  emulator::mbarrier_arrive_at(cluster_address);
}
inline void mbarrier_wait_cluster(u32 barrier, u32 parity) {
  emulator::mbarrier_wait(barrier, parity, emulator::Scope::cluster);
}

inline void prefetch(const CUtensorMap*) {}
inline void tma_load(u32 to, const CUtensorMap* map, u32 barrier, int x, int row, int head, int batch) {
  emulator::copy_box(to, *map, barrier, {x, row, head, batch});
}
inline void tma_load(u32 to, const CUtensorMap* map, u32 barrier, int x, int row, int head, int batch,
                     std::uint64_t) {
  tma_load(to, map, barrier, x, row, head, batch);
}
inline void tma_load_for_both(u32 to, const CUtensorMap* map, u32 barrier, int x, int row, int head,
                              int batch) {
  emulator::copy_box_to_each(2, to, *map, barrier, {x, row, head, batch});
}
inline void tma_store(const CUtensorMap* map, u32 from, int x, int row, int head, int batch) {
  emulator::store_box(*map, from, {x, row, head, batch});
}
inline void commit_stores() {
  emulator::commit_stores();
}
inline void wait_for_stores() {
  emulator::wait_for_stores();
}
inline void bulk_load(u32 to, const void* from, int bytes, u32 barrier) {
  emulator::copy_bytes(to, from, bytes, barrier);
}
inline void bulk_copy_to(u32 cluster_to, u32 from, int bytes, u32 cluster_barrier) {
  emulator::copy_shared(cluster_to, from, bytes, cluster_barrier);
}
inline void fence_async() {
  emulator::fence_writes(static_cast<unsigned>(emulator::here.number));
}

inline void fence_async_global() {}
inline void st_global_v4(float* to, const float (&x)[4]) {
  *reinterpret_cast<float4*>(to) = {x[0], x[1], x[2], x[3]};
}

inline void wait_for_kernel_before() {
  emulator::wait_for_kernel_before();
}
inline void let_next_kernel_begin() {}

template <int Registers>
void take_registers() {
  emulator::take_registers(Registers);
}
template <int Registers>
void give_registers() {
  emulator::give_registers(Registers);
}

// Element (r, c) of a part is in lane 4·r + c / 2. Bit 0 of c selects half of the lane's word. If a part is
// transposed, r and c are swapped.
struct MatrixStore {
  const u32 (&x)[4];
  alignas(16) std::uint16_t row[8];  // written by the lane
};
template <bool transposed>
void store_matrix(u32 address, const u32 (&x)[4]) {
  MatrixStore mine{x, {}};
  emulator::meet_warp(~0u, &mine, [](void* const(&all)[32]) {
    for (int lane = 0; lane < 32; ++lane)
      for (int c = 0; c < 8; ++c) {
        const int row = transposed ? c : lane % 8, column = transposed ? lane % 8 : c;
        static_cast<MatrixStore*>(all[lane])->row[c] = static_cast<std::uint16_t>(
            static_cast<const MatrixStore*>(all[4 * row + column / 2])->x[lane / 8] >> column % 2 * 16);
      }
  });
  uint4 words;
  std::memcpy(&words, mine.row, sizeof words);
  st_shared_v4(address, words);
}
inline void stmatrix(u32 address, const u32 (&x)[4]) {
  store_matrix<false>(address, x);
}
inline void stmatrix_trans(u32 address, const u32 (&x)[4]) {
  store_matrix<true>(address, x);
}

// nvcc assumes that the sums are ready directly after wgmma. Without keep() after the wait, nvcc may move
// reads of the sums before the wait. In the emulator, the sums are therefore NaN until keep().
inline void keep(float& x) {
  emulator::keep_sums(&x);
}
inline void keep(u32&) {}
inline void hold(const float*) {}

inline int load_acquire(const int* p) {
  return emulator::load_acquire(p);
}
inline void add_release(int* p, int n) {
  emulator::add_release(p, n);
}

}  // namespace tg::cuda::ptx
