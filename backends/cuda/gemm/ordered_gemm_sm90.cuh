// C = A·B or C = A·B + D on Hopper, in 16 bits. Sums start at D and are accumulated in f32 along k in order.
// k may therefore be split between any two steps of `depth`. The partial sum is then stored and read again,
// and the result is bitwise identical. The result of an element does not depend on m or n either. Blocks are
// persistent and process one tile after another. One thread copies operands by TMA. Each of two warpgroups
// multiplies half of the tile's rows. Both blocks of a pair compute the same columns. Each block copies half
// of the columns of B for both.
#pragma once

#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/tile/mma_sm90.cuh"
#include "backends/cuda/tile/pipeline_sm90.cuh"

namespace tg::cuda::ordered {

using namespace tile;
using i64 = long long;

constexpr int rows = 128, depth = 64, stages = 4, pair_rows = 2 * rows;
// Number of adjacent tiles that are processed at the same time. They read the same rows of A.
constexpr int together = 8;

struct Plan {
  CUtensorMap a, b;
  int m, n, depths;  // depths: number of steps of `depth` along k
  int row_pairs, column_tiles;
  const float* d;  // [m, n], or null
  void* c;         // [m, n], may be d
  i64 d_row, c_row;
  bool is_wide;  // C is f32
};

// Tiles have `columns` columns. Operands are contiguous along k, or along m or n.
template <class S_, int columns_, bool a_across_, bool b_across_>
struct Tiles {
  using S = S_;
  static constexpr int columns = columns_;
  static constexpr bool a_across = a_across_, b_across = b_across_;
  using A = std::conditional_t<a_across, SwizzledTile<depth, rows>, SwizzledTile<rows, depth>>;
  using B = std::conditional_t<b_across, SwizzledTile<depth, columns>, SwizzledTile<columns, depth>>;
  // Number of rows in memory of one TMA box. A row has 64 elements.
  static constexpr int a_box = a_across ? depth : rows, b_box = b_across ? depth / 2 : columns / 2;
};

template <class Tiles>
using Shared = OperandStages<typename Tiles::A, typename Tiles::B, stages>;

// Iterates over the tiles of a pair of blocks.
struct Schedule {
  const Plan& plan;
  int next = static_cast<int>(blockIdx.x) / 2, row_pair = 0, column_tile = 0;

  __device__ __forceinline__ bool find() {
    if (next >= plan.row_pairs * plan.column_tiles) return false;
    const int group = together * plan.row_pairs, first = next / group * together, in_group = next % group,
              width = min(together, plan.column_tiles - first);
    row_pair = in_group / width, column_tile = first + in_group % width;
    next += static_cast<int>(gridDim.x) / 2;
    return true;
  }
};

// Runs on one thread.
template <class Tiles>
__device__ __forceinline__ void load(const Shared<Tiles>& shared, const Plan& plan, u32 rank) {
  using A = typename Tiles::A;
  using B = typename Tiles::B;
  const int own = static_cast<int>(rank);
  u32 use = 0;
  Schedule tiles{plan};
#pragma unroll 1
  while (tiles.find()) {
    const int row0 = tiles.row_pair * pair_rows + own * rows, column0 = tiles.column_tile * Tiles::columns;
#pragma unroll 1
    for (int k = 0; k < plan.depths; ++k, ++use) {
      const auto ring = shared.ring();
      ring.acquire_of_cluster(use);
      ring.expect(use, A::bytes + B::bytes);
      const u32 a = shared.a(use).base, b = shared.b(use).base + rank * Tiles::b_box * 128;
      if constexpr (Tiles::a_across) {
#pragma unroll
        for (int i = 0; i < A::blocks; ++i)
          ptx::tma_load(a + i * A::block, &plan.a, ring.full(use), row0 + 64 * i, k * depth, 0, 0);
      } else {
        ptx::tma_load(a, &plan.a, ring.full(use), k * depth, row0, 0, 0);
      }
      if constexpr (Tiles::b_across) {  // half of the depth
#pragma unroll
        for (int i = 0; i < B::blocks; ++i)
          ptx::tma_load_for_both(b + i * B::block, &plan.b, ring.full(use), column0 + 64 * i,
                                 k * depth + own * Tiles::b_box, 0, 0);
      } else {  // half of the columns
        ptx::tma_load_for_both(b, &plan.b, ring.full(use), k * depth, column0 + own * Tiles::b_box, 0, 0);
      }
    }
  }
}

// One of the two warpgroups.
template <class Tiles>
struct Consumer {
  using S = typename Tiles::S;
  static constexpr int columns = Tiles::columns;
  using Sum = Accumulator<16, columns>;
  const Shared<Tiles>& shared;
  const Plan& plan;
  int warpgroup;
  u32 rank, use = 0;

  __device__ __forceinline__ void run() {
    Schedule tiles{plan};
#pragma unroll 1
    while (tiles.find()) compute(tiles);
  }

  __device__ __forceinline__ void compute(const Schedule& tile) {
    const int own_row = tile.row_pair * pair_rows + static_cast<int>(rank) * rows + warpgroup * 64 +
                        static_cast<int>(threadIdx.x / 32 % 4) * 16 + lane_row(),
              own_column = tile.column_tile * columns + lane_column();
    Sum sum;
    if (plan.d)
      read(sum, own_row, own_column);
    else
      sum.fill(0);
    begin(sum);
    ++use;
#pragma unroll 1
    for (int k = 1; k < plan.depths; ++k, ++use) {
      begin(sum);
      wait_for_products<1>();
      shared.ring().release_to_both(use - 1);
    }
    wait_for_products<0>();
    keep(sum);
    shared.ring().release_to_both(use - 1);
    store(sum, own_row, own_column);
  }

  __device__ __forceinline__ void begin(Sum& sum) const {
    shared.ring().wait(use);
    begin_product<S, depth, Tiles::a_across, Tiles::b_across, true>(sum, shared.a(use), warpgroup * 64,
                                                                    shared.b(use), 0);
  }

  __device__ __forceinline__ void read(Sum& sum, int own_row, int own_column) const {
    const float* const from = plan.d + i64{own_row} * plan.d_row + own_column;
#pragma unroll
    for (int part = 0; part < columns / 8; ++part)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float2 x = make_float2(0, 0);
        if (own_row + 8 * h < plan.m && own_column + 8 * part < plan.n)
          x = *reinterpret_cast<const float2*>(from + i64{8 * h} * plan.d_row + 8 * part);
        sum.x[0][part][2 * h] = x.x, sum.x[0][part][2 * h + 1] = x.y;
      }
  }

  __device__ __forceinline__ void store(Sum& sum, int own_row, int own_column) const {
    const i64 at = i64{own_row} * plan.c_row + own_column;
#pragma unroll
    for (int part = 0; part < columns / 8; ++part)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (own_row + 8 * h >= plan.m || own_column + 8 * part >= plan.n) continue;
        const float x = sum.x[0][part][2 * h], y = sum.x[0][part][2 * h + 1];
        const i64 i = at + i64{8 * h} * plan.c_row + 8 * part;
        if (plan.is_wide)
          *reinterpret_cast<float2*>(static_cast<float*>(plan.c) + i) = make_float2(x, y);
        else
          *reinterpret_cast<u32*>(static_cast<S*>(plan.c) + i) = pack(x, y, S());
      }
  }
};

template <class Tiles>
__global__ void __launch_bounds__(pair_threads, 1) multiply(const __grid_constant__ Plan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  begin_early();
  TG_DYNAMIC_SHARED(memory, 1024);
  const Shared<Tiles> shared{shared_address(memory)};
  constexpr int consumers = 16;  // the eight warps of a tile, in each block
  run_pair(
      shared.ring(), consumers, [&](u32 rank) { load<Tiles>(shared, plan, rank); },
      [&](int warpgroup, u32 rank) {
        Consumer<Tiles>{shared, plan, warpgroup, rank}.run();
      });
#endif
}

}  // namespace tg::cuda::ordered
