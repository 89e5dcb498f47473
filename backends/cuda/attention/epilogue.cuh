// Sums in registers become rows of a result.
#pragma once

#include <type_traits>

#include "backends/cuda/tile/accumulator.cuh"

namespace tg::cuda::attention {

// Rows row0 … of data [rows, size] = c. In f32 from the registers, with rows that begin at multiples of 8
// bytes; rounded to 16 bits, with rows as load_rows needs them, through rows tile_row … of a shared tile, of
// any architecture, that only this warp uses.
template <class R, int Rows, int Columns, class SharedTile>
__device__ __forceinline__ void store(tile::Accumulator<Rows, Columns>& c, SharedTile tile, int tile_row,
                                      R* data, long long stride, int row0, int rows, int size) {
  if constexpr (std::is_same_v<R, float>) {
#pragma unroll
    for (int r = 0; r < c.rows; ++r)
#pragma unroll
      for (int k = 0; k < c.columns; k += 2) {
        const int row = row0 + c.row(r) + tile::lane_row(), column = c.column(k) + tile::lane_column();
        if (row < rows && column < size)
          *reinterpret_cast<float2*>(data + row * stride + column) = {c(r, k), c(r, k + 1)};
      }
  } else {
    put<R>(c, tile, tile_row, 0);
    __syncwarp();
#pragma unroll 4
    for (int n = tile::lane_id(); n < Rows * c.parts; n += 32) {
      const int row = row0 + n / c.parts, piece = n % c.parts;
      const uint4 v = ptx::ld_shared_v4(tile.address(tile_row + n / c.parts, piece));
      if (row < rows && piece * 8 < size) *reinterpret_cast<uint4*>(data + row * stride + piece * 8) = v;
    }
  }
}

}  // namespace tg::cuda::attention
