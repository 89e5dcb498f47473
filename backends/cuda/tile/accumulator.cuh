// A tile of f32 elements in registers. A warp accumulates matrix products in it, and computes row by row. In
// each 8 × 8 part, lane 4·g + t of a warp has elements (g, 2t) and (g, 2t + 1). mma.sync (sm_80, 16 × 8 sums)
// and wgmma (sm_90, 16 × N per warp) use this layout. Code for this tile therefore works with both.
#pragma once

#include "backends/cuda/tile/ptx_sm80.cuh"

namespace tg::cuda::tile {

__device__ __forceinline__ int lane_id() {
  return threadIdx.x % 32;
}
// The first row and the first column of the lane's elements in a tile.
__device__ __forceinline__ int lane_row() {
  return lane_id() / 4;
}
__device__ __forceinline__ int lane_column() {
  return lane_id() % 4 * 2;
}

template <int Rows, int Columns>
struct Accumulator {
  static constexpr int groups = Rows / 16, parts = Columns / 8;
  static constexpr int rows = Rows / 8, columns = Columns / 4;  // per thread
  float x[groups][parts][4];  // rows g, g, g + 8, g + 8 of a group; columns 2t, 2t + 1 of a part

  // The thread's element in its row r and column c.
  __device__ __forceinline__ float& operator()(int r, int c) { return x[r / 2][c / 2][r % 2 * 2 + c % 2]; }
  // Positions of the thread's rows and columns in the tile, relative to lane_row() and lane_column().
  __device__ static constexpr int row(int r) { return r / 2 * 16 + r % 2 * 8; }
  __device__ static constexpr int column(int c) { return c / 2 * 8 + c % 2; }

  __device__ __forceinline__ void fill(float value) {
#pragma unroll
    for (auto& group : x)
#pragma unroll
      for (auto& part : group)
#pragma unroll
        for (float& e : part) e = value;
  }
};

// One value per row.
template <int Rows>
struct RowVector {
  static constexpr int rows = Rows / 8;  // per thread
  float x[rows];
  __device__ __forceinline__ float& operator[](int r) { return x[r]; }
};

// Calls f(r, c, element) for the thread's elements, row by row.
template <int Rows, int Columns, class F>
__device__ __forceinline__ void for_each(Accumulator<Rows, Columns>& a, F&& f) {
#pragma unroll
  for (int r = 0; r < a.rows; ++r)
#pragma unroll
    for (int c = 0; c < a.columns; ++c) f(r, c, a(r, c));
}
// Calls f(row, column, elements…) for the thread's 2 × 2 elements of each 16 × 8 part of tiles of the same
// size. The first of the four is (row, column).
template <class F, int Rows, int Columns, class... More>
__device__ __forceinline__ void for_each_part(F&& f, Accumulator<Rows, Columns>& a, More&... more) {
#pragma unroll
  for (int m = 0; m < a.groups; ++m)
#pragma unroll
    for (int p = 0; p < a.parts; ++p)
      f(16 * m + lane_row(), 8 * p + lane_column(), a.x[m][p], more.x[m][p]...);
}

template <int Rows, int Columns>
__device__ __forceinline__ void scale(Accumulator<Rows, Columns>& a, float factor) {
  for_each(a, [&](int, int, float& e) { e *= factor; });
}
// Scale one row r of the thread, or each row by its own factor.
template <int Rows, int Columns>
__device__ __forceinline__ void scale_row(Accumulator<Rows, Columns>& a, int r, float factor) {
#pragma unroll
  for (int c = 0; c < a.columns; ++c) a(r, c) *= factor;
}
template <int Rows, int Columns>
__device__ __forceinline__ void scale_rows(Accumulator<Rows, Columns>& a, RowVector<Rows> factor) {
  for_each(a, [&](int r, int, float& e) { e *= factor[r]; });
}

// The maximum of each row: over the thread's own columns, and over all columns.
template <int Rows, int Columns>
__device__ __forceinline__ RowVector<Rows> own_row_max(Accumulator<Rows, Columns>& a) {
  RowVector<Rows> most;
#pragma unroll
  for (int r = 0; r < a.rows; ++r) {
    most[r] = -INFINITY;
#pragma unroll
    for (int c = 0; c < a.columns; c += 2) most[r] = fmaxf(most[r], fmaxf(a(r, c), a(r, c + 1)));
  }
  return most;
}
__device__ __forceinline__ float row_max(float own) {
  own = fmaxf(own, __shfl_xor_sync(~0u, own, 1));
  return fmaxf(own, __shfl_xor_sync(~0u, own, 2));
}
// Sums over the lanes that share a row.
__device__ __forceinline__ float row_sum(float own) {
  own += __shfl_xor_sync(~0u, own, 1);
  return own + __shfl_xor_sync(~0u, own, 2);
}

// The maximum and the sum over the lanes that share a column.
__device__ __forceinline__ float column_max(float own) {
#pragma unroll
  for (int by = 4; by < 32; by *= 2) own = fmaxf(own, __shfl_xor_sync(~0u, own, by));
  return own;
}
__device__ __forceinline__ float column_sum(float own) {
#pragma unroll
  for (int by = 4; by < 32; by *= 2) own += __shfl_xor_sync(~0u, own, by);
  return own;
}
// Scales one column c of the thread.
template <int Rows, int Columns>
__device__ __forceinline__ void scale_column(Accumulator<Rows, Columns>& a, int c, float factor) {
#pragma unroll
  for (int r = 0; r < a.rows; ++r) a(r, c) *= factor;
}

__device__ __forceinline__ float exp2_fast(float x) {
  return ptx::ex2(x);
}
__device__ __forceinline__ double exp2_fast(double x) {
  return exp2(x);
}
// 1 / x for a normal number x. Unlike a division, it has no branch for special values. All bits except the
// last are correct.
__device__ __forceinline__ float reciprocal(float x) {
  const float y = ptx::rcp(x);
  return fmaf(y, fmaf(-x, y, 1.f), y);
}
__device__ __forceinline__ float log2_fast(float x) {
  return ptx::lg2(x);
}

}  // namespace tg::cuda::tile
