// Sums in registers become rows of a result.
#pragma once

#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::attention {

// Rows row0 … of data [rows, size] = c, rounded to 16 bits, through rows of a shared tile that only this warp
// uses: from tile_row on, `tile_step` further for each group of 16.
template <class S, int tile_step, int Rows, int Columns, int C>
__device__ __forceinline__ void store(const tile::Accumulator<Rows, Columns>& c, tile::SharedTile<C> tile,
                                      int tile_row, S* data, long long stride, int row0, int rows, int size) {
#pragma unroll
  for (int m = 0; m < c.groups; ++m)
    tile::store_rows<S>(c.x[m], tile, tile_row + m * tile_step, data, stride, row0 + 16 * m, rows, size);
}
// The same in f32, from the registers.
template <int Rows, int Columns>
__device__ __forceinline__ void store(const tile::Accumulator<Rows, Columns>& c, float* data,
                                      long long stride, int row0, int rows, int size) {
#pragma unroll
  for (int m = 0; m < c.groups; ++m) tile::store_rows(c.x[m], data, stride, row0 + 16 * m, rows, size);
}

}  // namespace tg::cuda::attention
