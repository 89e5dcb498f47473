// Tiles of 16-bit elements in shared memory, and their transfers from and to global memory and registers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/tile/accumulator.cuh"

namespace tg::cuda::tile {

using ptx::u32, ptx::shared_address;

// A tile [rows, columns]. The number of columns is a multiple of 16. Pieces of 8 elements are permuted within
// a row. The pieces of 8 adjacent rows in one column are therefore in different banks.
template <int Columns>
struct SharedTile {
  static constexpr int columns = Columns, pieces = Columns / 8;
  u32 base;  // address in shared memory in bytes

  __device__ static constexpr int permuted(int row, int piece) {
    constexpr int mask = pieces % 8 == 0 ? 7 : pieces % 4 == 0 ? 3 : 1;
    constexpr int shift = pieces % 8 == 0 ? 0 : pieces % 4 == 0 ? 1 : 2;
    return piece ^ ((row >> shift) & mask);
  }
  __device__ u32 address(int row, int piece) const {
    return base + (row * pieces + permuted(row, piece)) * 16;
  }
  // The address of piece pair·2 + piece in row row0 + row. row0 is a multiple of 8, and `piece` is 0 or 1.
  // The lane's part of the address is computed once for all row0 and pairs. Tiles are aligned to 1024 bytes,
  // or 256 if they have at most 128 columns.
  __device__ __forceinline__ u32 address(int row0, int row, int pair, int piece) const {
    if constexpr ((pieces & (pieces - 1)) == 0) {
      return ((base + (row * pieces + permuted(row, piece)) * 16) ^ (pair * 32)) + row0 * (pieces * 16);
    } else {
      return base + (row0 + row) * (pieces * 16) + (permuted(row, piece) ^ (2 * pair)) * 16;
    }
  }
  static constexpr int bytes(int rows) { return rows * Columns * 2; }
};

// Copies rows row0 … row0+Rows-1 of a matrix [_, size] into a tile. The copies are asynchronous. Called by
// the whole block. Rows outside of [from, to) and columns at `size` and beyond become zeros. Rows are aligned
// to 16 bytes, and size is a multiple of 16 bytes.
template <int Rows, int Threads, int Columns, class S>
__device__ __forceinline__ void load_rows(SharedTile<Columns> tile, const S* data, long long stride, int row0,
                                          int from, int to, int size) {
  constexpr int pieces = Columns / 8, all = Rows * pieces, elements = 16 / sizeof(S);
  const auto copy = [](u32 to_address, const S* source, bool there) {  // nothing is read unless `there`
    ptx::cp_async_16(to_address, source, there ? 16 : 0);
  };
  constexpr int step = Threads / pieces;
  if constexpr (Threads % pieces == 0 && Rows % step == 0 &&
                (step % 8 == 0 || (pieces % 8 == 0 && 8 % step == 0))) {
    // A thread copies the same piece of each of its rows. Its row number modulo 8 changes only by an XOR with
    // a constant.
    const int row = threadIdx.x / pieces, piece = threadIdx.x % pieces;
    const S* source = data + (row0 + row) * stride + piece * elements;
    const bool inside = piece * elements < size;
    const u32 address = tile.address(row, piece);
#pragma unroll
    for (int n = 0; n < Rows / step; ++n, source += step * stride) {
      const int at = row0 + row + n * step;
      copy((address ^ n * step % 8 * 16) + n * step * pieces * 16, source, inside && at >= from && at < to);
    }
  } else {
    constexpr int times = (all + Threads - 1) / Threads;
#pragma unroll(times <= 4 ? times : times <= 8 ? 2 : 1)
    for (int n = 0; n < times; ++n) {
      const int at = n * Threads + threadIdx.x, row = at / pieces, piece = at % pieces;
      if (all % Threads != 0 && at >= all) break;
      copy(tile.address(row, piece), data + (row0 + row) * stride + piece * elements,
           row0 + row >= from && row0 + row < to && piece * elements < size);
    }
  }
}

// Two elements rounded to 16 bits. `low` is in the lower half.
__device__ __forceinline__ u32 pack(float low, float high, __nv_bfloat16) {
  return ptx::cvt_bf16x2(low, high);
}
__device__ __forceinline__ u32 pack(float low, float high, __half) {
  return ptx::cvt_f16x2(low, high);
}

__device__ __forceinline__ float2 unpack(u32 x, __nv_bfloat16) {
  return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
}
__device__ __forceinline__ float2 unpack(u32 x, __half) {
  return ptx::unpack_f16x2(x);
}

// Writes rounded sums to tile[row0 …][column0 …].
template <class S, int Rows, int Columns, int C>
__device__ __forceinline__ void put(Accumulator<Rows, Columns>& c, SharedTile<C> tile, int row0,
                                    int column0) {
#pragma unroll
  for (int p = 0; p < c.parts; ++p)
#pragma unroll
    for (int r = 0; r < c.rows; ++r)
      ptx::st_shared(tile.address(row0 + c.row(r) + lane_row(), column0 / 8 + p) + lane_id() % 4 * 4,
                     pack(c(r, 2 * p), c(r, 2 * p + 1), S()));
}

// c ⊛= tile[row0 …][column0 …], as written by put().
template <class S, int Rows, int Columns, int C>
__device__ __forceinline__ void multiply_by(Accumulator<Rows, Columns>& c, SharedTile<C> tile, int row0,
                                            int column0) {
#pragma unroll
  for (int m = 0; m < c.groups; ++m)
#pragma unroll
    for (int p = 0; p < c.parts; p += 2) {
      u32 x[4];
      ptx::ldmatrix(x, tile.address(row0 + 16 * m + lane_id() % 16, column0 / 8 + p + lane_id() / 16));
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float2 by = unpack(x[n], S());
        float* const e = &c.x[m][p + n / 2][n % 2 * 2];
        e[0] *= by.x, e[1] *= by.y;
      }
    }
}

}  // namespace tg::cuda::tile
