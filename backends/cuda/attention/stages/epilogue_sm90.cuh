// Sums in registers become rows of a result on Hopper: through a shared tile, and from there by TMA, which
// takes a quarter of the instructions that stores by lanes do.
#pragma once

#include "backends/cuda/tile/accumulator.cuh"
#include "backends/cuda/tile/shared_sm80.cuh"
#include "backends/cuda/tile/shared_sm90.cuh"

namespace tg::cuda::attention {

// Rows row0 … of a head by a tensor map of boxes of 16 rows, = c rounded to 16 bits, by a warp; through the
// rows from tile_row on of a tile that nobody else uses until lane 0 has waited for its stores.
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
