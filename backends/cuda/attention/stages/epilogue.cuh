// Stores accumulators to rows of a result.
#pragma once

#include <type_traits>

#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::attention {

// Transposes 4 × 4 words among the four lanes of a quad. Afterwards lane t has word t of lanes 0 … 3.
__device__ __forceinline__ void transpose_quad(tile::u32 (&x)[4]) {
  const int t = tile::lane_id() % 4;
#pragma unroll
  for (int step = 1; step <= 2; step *= 2) {
    const bool upper = t & step;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      tile::u32 &low = x[step == 1 ? 2 * n : n], &high = x[step == 1 ? 2 * n + 1 : n + 2];
      const tile::u32 got = __shfl_xor_sync(~0u, upper ? low : high, step);
      (upper ? low : high) = got;
    }
  }
}

// Stores c to rows row0 … of data [rows, size], directly from registers. f32 rows must be 8-byte aligned.
// For 16-bit types, c is rounded and each lane stores 16 bytes.
template <class R, int Rows, int Columns>
__device__ __forceinline__ void store(tile::Accumulator<Rows, Columns>& c, R* data, long long stride,
                                      int row0, int rows, int size) {
#pragma unroll
  for (int r = 0; r < c.rows; ++r) {
    const int row = row0 + c.row(r) + tile::lane_row();
    if constexpr (std::is_same_v<R, float>) {
#pragma unroll
      for (int k = 0; k < c.columns; k += 2) {
        const int column = c.column(k) + tile::lane_column();
        if (row < rows && column < size)
          *reinterpret_cast<float2*>(data + row * stride + column) = {c(r, k), c(r, k + 1)};
      }
    } else {
      R* const to = data + row * stride + tile::lane_id() % 4 * 8;
#pragma unroll
      for (int part = 0; part < c.parts; part += 4) {
        tile::u32 x[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) x[n] = tile::pack(c(r, 2 * (part + n)), c(r, 2 * (part + n) + 1), R());
        transpose_quad(x);
        if (row < rows && part * 8 + tile::lane_id() % 4 * 8 < size)
          *reinterpret_cast<uint4*>(to + part * 8) = {x[0], x[1], x[2], x[3]};
      }
    }
  }
}

// Also stores c, but writes 16-bit results first to rows tile_row … of a shared tile. Tiles of all
// architectures are supported. Only this warp may use these rows. Global rows must be aligned as for
// load_rows().
template <class R, int Rows, int Columns, class SharedTile>
__device__ __forceinline__ void store(tile::Accumulator<Rows, Columns>& c, SharedTile tile, int tile_row,
                                      R* data, long long stride, int row0, int rows, int size) {
  if constexpr (std::is_same_v<R, float>) {
    store(c, data, stride, row0, rows, size);
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

// Stores the transpose of c, in f32 or rounded to 16 bits. Rows of c are columns column0 … of data, which has
// `size` columns.
template <class R, int Columns>
__device__ __forceinline__ void store_transposed(tile::Accumulator<16, Columns>& c, R* data, long long stride,
                                                 int column0, int row0, int rows, int size) {
  if constexpr (std::is_same_v<R, float>) {
#pragma unroll
    for (int k = 0; k < c.columns; ++k)
#pragma unroll
      for (int r = 0; r < c.rows; ++r) {
        const int row = row0 + c.column(k) + tile::lane_column(),
                  column = column0 + c.row(r) + tile::lane_row();
        if (row < rows && column < size) data[row * stride + column] = c(r, k);
      }
  } else {
    const int lane = tile::lane_id(), column = column0 + lane % 2 * 8;
#pragma unroll
    for (int part = 0; part < c.parts; part += 2) {
      tile::u32 x[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float(&e)[4] = c.x[0][part + n / 2];
        x[n] = ptx::transpose_8x8(tile::pack(e[n % 2 * 2], e[n % 2 * 2 + 1], R()));
      }
      transpose_quad(x);
      const int row = row0 + 8 * (part + lane % 4 / 2) + tile::lane_row();
      if (row < rows && column < size)
        *reinterpret_cast<uint4*>(data + row * stride + column) = {x[0], x[1], x[2], x[3]};
    }
  }
}

}  // namespace tg::cuda::attention
