// Computes E = exp(x·wᵀ − c) on Hopper, with one value c for each row. For each row of each tile, it also
// writes the sum of E and the largest logit. Logits are not stored. Blocks are persistent and process one
// tile after another. One thread copies operands by TMA. Two warpgroups process alternate tiles. While one
// computes and stores exponentials, the other multiplies. Both blocks of a pair compute the same columns.
// Each block copies half of the rows of w for both.
#pragma once

#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/tile/mma_sm90.cuh"
#include "backends/cuda/tile/pipeline_sm90.cuh"

namespace tg::cuda::exp_product {

using namespace tile;
using i64 = long long;

constexpr int rows = 64, columns = 256, depth = 64, stages = 5, pair_rows = 2 * rows;
// Number of pairs of row tiles that are processed for one column tile before the next column tile starts. All
// of these pairs read the same columns of w. Their rows of x stay in the L2 cache.
constexpr int together = 16;
constexpr float log2_e = 1.44269504f;

struct Sum {
  float sum, largest;  // sum of E, largest logit
};

struct Plan {
  CUtensorMap x, w;
  int n, V, depths;  // depths: number of steps of `depth` along c
  int row_pairs, column_tiles;
  const float* shift;  // c [n]; ∞: E is 0 for the whole row
  void* E;             // [n, V]
  Sum* sums;           // [column_tiles, n]
  // If this is null, all row tiles are computed. Otherwise it contains flags: some[0] is set if any pair of
  // row tiles must be computed, and some[1 + i] is set if pair i must be computed.
  const int* some;
};

using X = SwizzledTile<rows, depth>;
// Rows of w are permuted, so that a thread's accumulators belong to adjacent columns of E. In each group of
// 128 rows, position 32·i + 2·j + e contains row 8·j + 2·i + e. TMA sees a tensor [4, V / 8, 2, c].
using W = SwizzledTile<columns, depth>;

using Shared = OperandStages<X, W, stages>;

// Iterates over the tiles of a pair of blocks.
struct Schedule {
  const Plan& plan;
  int next, row_pair = 0, column_tile = 0;

  __device__ __forceinline__ explicit Schedule(const Plan& plan)
      : plan(plan), next(static_cast<int>(blockIdx.x) / 2) {}
  __device__ __forceinline__ bool find() {
    const int all = plan.row_pairs * plan.column_tiles, group = together * plan.column_tiles;
#pragma unroll 1
    while (next < all) {
      const int first = next / group * together, in_group = next % group,
                height = min(together, plan.row_pairs - first);
      row_pair = first + in_group % height, column_tile = in_group / height;
      next += static_cast<int>(gridDim.x) / 2;
      if (!plan.some || plan.some[1 + row_pair]) return true;
    }
    return false;
  }
};

// Runs on one thread.
__device__ __forceinline__ void load(const Shared& shared, const Plan& plan, u32 rank) {
  u32 use = 0;
  Schedule tiles(plan);
#pragma unroll 1
  while (tiles.find()) {
    const int row0 = tiles.row_pair * pair_rows + static_cast<int>(rank) * rows,
              column0 = tiles.column_tile * columns + static_cast<int>(rank) * (columns / 2);
#pragma unroll 1
    for (int k = 0; k < plan.depths; ++k, ++use) {
      const auto ring = shared.ring();
      ring.acquire_of_cluster(use);
      ring.expect(use, X::bytes + W::bytes);
      ptx::tma_load(shared.a(use).base, &plan.x, ring.full(use), k * depth, row0, 0, 0);
      ptx::tma_load_for_both(shared.b(use).base + rank * (W::bytes / 2), &plan.w, ring.full(use), k * depth,
                             0, column0 / 8, 0);
    }
  }
}

// One of the two warpgroups. It computes every second tile.
template <class S>
struct Consumer {
  const Shared& shared;
  const Plan& plan;
  int warpgroup;
  u32 rank, use = 0;

  // A warpgroup starts its GEMM of a tile when the other warpgroup has issued all instructions of its GEMM.
  __device__ __forceinline__ void take_turn() const { ptx::bar_sync(1 + warpgroup, 256); }
  __device__ __forceinline__ void pass_turn() const { ptx::bar_arrive(1 + (warpgroup ^ 1), 256); }

  __device__ __forceinline__ void run() {
    if (warpgroup == 1) pass_turn();
    Schedule tiles(plan);
#pragma unroll 1
    for (int n = 0; tiles.find(); ++n) {
      if (n % 2 == warpgroup)
        compute(tiles.row_pair * pair_rows + static_cast<int>(rank) * rows, tiles.column_tile);
      else
        use += plan.depths;
    }
  }

  __device__ __forceinline__ void compute(int row0, int column_tile) {
    const int own_row = row0 + static_cast<int>(threadIdx.x / 32 % 4) * 16 + lane_row();
    Accumulator<16, columns> logits;
    take_turn();
    shared.ring().wait(use);
    begin_ABt<S, depth>(logits, shared.a(use), 0, shared.b(use));
    ++use;
    float shift[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
      shift[h] = own_row + 8 * h < plan.n ? plan.shift[own_row + 8 * h] * log2_e : 0;
#pragma unroll 1
    for (int k = 1; k < plan.depths; ++k, ++use) {
      shared.ring().wait(use);
      begin_adding_ABt<S, depth>(logits, shared.a(use), 0, shared.b(use));
      wait_for_products<1>();
      shared.ring().release_to_both(use - 1);
    }
    pass_turn();
    wait_for_products<0>();
    keep(logits);
    shared.ring().release_to_both(use - 1);
    store(logits, own_row, column_tile, shift);
  }

  // In each group of 32 columns, the thread has 8 adjacent columns of two rows.
  __device__ __forceinline__ void store(Accumulator<16, columns>& logits, int own_row, int column_tile,
                                        const float (&shift)[2]) const {
    const int column0 = column_tile * columns + lane_id() % 4 * 8;
    Sum total[2] = {{0, -INFINITY}, {0, -INFINITY}};
    S* const to = static_cast<S*>(plan.E) + i64{own_row} * plan.V + column0;
#pragma unroll
    for (int part = 0; part < columns / 32; ++part) {
      if (column0 + part * 32 < plan.V)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          u32 words[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float e[2];
#pragma unroll
            for (int n = 0; n < 2; ++n) {
              const float l = logits.x[0][part / 4 * 16 + 4 * i + part % 4][2 * h + n];
              e[n] = ptx::ex2(fmaf(l, log2_e, -shift[h]));
              total[h].sum += e[n], total[h].largest = fmaxf(total[h].largest, l);
            }
            words[i] = pack(e[0], e[1], S());
          }
          if (own_row + 8 * h < plan.n)
            *reinterpret_cast<uint4*>(to + i64{8 * h} * plan.V + part * 32) =
                make_uint4(words[0], words[1], words[2], words[3]);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int by = 1; by < 4; by *= 2) {
        total[h].sum += __shfl_xor_sync(~0u, total[h].sum, by);
        total[h].largest = fmaxf(total[h].largest, __shfl_xor_sync(~0u, total[h].largest, by));
      }
      const int row = own_row + 8 * h;
      if (lane_id() % 4 == 0 && row < plan.n) plan.sums[i64{column_tile} * plan.n + row] = total[h];
    }
  }
};

template <class S>
__global__ void __launch_bounds__(pair_threads, 1) exp_product(const __grid_constant__ Plan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  begin_early();
  if (plan.some && plan.some[0] == 0) return;
  TG_DYNAMIC_SHARED(memory, 1024);
  const Shared shared{shared_address(memory)};
  constexpr int consumers = 8;  // the four warps of a tile, in each block
  run_pair(
      shared.ring(), consumers, [&](u32 rank) { load(shared, plan, rank); },
      [&](int warpgroup, u32 rank) {
        Consumer<S>{shared, plan, warpgroup, rank}.run();
      });
#endif
}

}  // namespace tg::cuda::exp_product
