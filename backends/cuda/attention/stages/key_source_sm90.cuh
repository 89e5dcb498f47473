// Loads of operand tiles and stores of results on Hopper, by TMA boxes of a tensor map. If memory next to the
// valid rows may contain anything, such as NaN, a warp copies only the valid rows instead.
#pragma once

#include <cuda.h>

#include "backends/cuda/attention/options.h"
#include "backends/cuda/runtime/tensor_map.h"
#include "backends/cuda/tile/accumulator.cuh"
#include "backends/cuda/tile/pipeline_sm90.cuh"
#include "backends/cuda/tile/shared_sm80.cuh"
#include "backends/cuda/tile/shared_sm90.cuh"

namespace tg::cuda::attention {

// Describes an operand [batch, heads, rows, size] of 16-bit elements. It is copied in boxes of `box_rows` (at
// most 256) rows × 64 columns, in the layout of a SwizzledTile. A box of several heads or batch entries
// stores them consecutively. Elements outside the operand are read as zero. Rows must be 16-byte aligned and
// no stride may be 0.
inline CUtensorMap tensor_map(DType type, const AttentionCall::TensorView& x, std::int64_t batch, int heads,
                              int rows, int size, int box_rows, int box_heads = 1, int box_batches = 1) {
  const auto stride = [&](std::int64_t of, std::int64_t count) { return count == 1 ? 8 : of; };
  return cuda::tensor_map(type, x.data, {size, rows, heads, batch},
                          {stride(x.row, rows), stride(x.head, heads), stride(x.batch, batch)},
                          {64, box_rows, box_heads, box_batches});
}

// Starts TMA loads of a tile: rows of a head from row0, and columns from column0. The barrier counts the
// bytes. Called by one thread.
__device__ __forceinline__ void load_boxes(auto to, const CUtensorMap& map, tile::u32 barrier, int row0,
                                           int head, int batch, int column0 = 0) {
#pragma unroll 1
  for (int n = 0; n < to.blocks; ++n)
    ptx::tma_load(to.base + n * to.block, &map, barrier, column0 + n * 64, row0, head, batch);
}
// Starts TMA loads of a tile for both blocks of a cluster. Each block loads half of the columns and
// multicasts them to both blocks.
__device__ __forceinline__ void load_half_for_both(auto to, const CUtensorMap& map, tile::u32 barrier,
                                                   int row0, int head, int batch) {
  constexpr int half = to.blocks / 2;
  const int first = ptx::cluster_rank() * half;
#pragma unroll 1
  for (int n = first; n < first + half; ++n)
    ptx::tma_load_for_both(to.base + n * to.block, &map, barrier, n * 64, row0, head, batch);
}
// Replaces load_boxes() by copies of a warp. Invalid rows are not read and become zeros. `data` points to the
// head.
__device__ __forceinline__ void copy_rows(auto to, const auto* data, long long stride, int row0,
                                          KeyRange valid, int size) {
  constexpr int pieces = to.blocks * 8;
#pragma unroll 1
  for (int n = threadIdx.x % 32; n < to.rows * pieces; n += 32) {
    const int row = n / pieces, piece = n % pieces;
    uint4 words{0, 0, 0, 0};
    if (row0 + row >= valid.from && row0 + row < valid.to && piece * 8 < size)
      words = *reinterpret_cast<const uint4*>(data + (row0 + row) * stride + piece * 8);
    ptx::st_shared_v4(to.base + to.offset(row, piece), words);
  }
  ptx::fence_async();
  __syncwarp();
}

// Stores c, rounded to 16 bits, to rows row0 … of a head. A warp writes the rows into a shared tile, starting
// at tile_row, and TMA stores them with a tensor map of 16-row boxes. This needs a quarter of the
// instructions of per-lane stores. Until lane 0 has waited for its stores, no other warp may use these rows
// of the tile.
template <class R, int Columns, class Tile>
__device__ __forceinline__ void store_boxes(tile::Accumulator<16, Columns>& c, Tile tile, int tile_row,
                                            const CUtensorMap& map, int row0, int head, int batch) {
  const int lane = tile::lane_id();
#pragma unroll
  for (int part = 0; part < c.parts; part += 2) {
    tile::u32 x[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float(&e)[4] = c.x[0][part + n / 2];
      x[n] = tile::pack(e[n % 2 * 2], e[n % 2 * 2 + 1], R());
    }
    ptx::stmatrix(tile.base + Tile::offset(tile_row + lane % 16, part + lane / 16), x);
  }
  ptx::fence_async();
  __syncwarp();
  if (lane > 0) return;
#pragma unroll 1
  for (int n = 0; n < Tile::blocks; ++n)
    ptx::tma_store(&map, tile.base + n * Tile::block + tile_row * 128, n * 64, row0, head, batch);
  ptx::commit_stores();
}

}  // namespace tg::cuda::attention
