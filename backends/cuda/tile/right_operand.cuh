// Right operands of mma.sync that stay in registers, for 8 to 16 rows. In a left operand of 16 rows, most
// rows would be padding. GEMMs are therefore transposed, and sums are [many, few].
#pragma once

#include "backends/cuda/tile/terms.cuh"

namespace tg::cuda::tile {

// The transpose of Rows rows with K 16-bit elements. For each 8 rows and 16 elements, lane 4·g + t has
// elements 2t, 2t + 1, 2t + 8 and 2t + 9 of row g.
template <int Rows, int K>
struct RightOperand {
  static constexpr int parts = Rows / 8, steps = K / 16;
  u32 x[parts][steps][2];
};

// Loads rows from memory. row(r) returns the address of row r, or null for a row of zeros. Elements at `size`
// and beyond are zero.
template <int Rows, int K, class Row>
__device__ __forceinline__ void load(RightOperand<Rows, K>& b, Row&& row, int size) {
#pragma unroll
  for (int p = 0; p < b.parts; ++p) {
    const auto* const from = row(8 * p + lane_row());
#pragma unroll
    for (int k = 0; k < b.steps; ++k)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = 16 * k + 8 * half + lane_column();
        b.x[p][k][half] = from && column < size ? *reinterpret_cast<const u32*>(from + column) : 0;
      }
  }
}
// Rounds sums [K, Rows].
template <class S, int K, int Rows>
__device__ __forceinline__ RightOperand<Rows, K> right_operand(Accumulator<K, Rows>& c) {
  RightOperand<Rows, K> b;
#pragma unroll
  for (int p = 0; p < b.parts; ++p)
#pragma unroll
    for (int k = 0; k < b.steps; ++k)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        b.x[p][k][half] = ptx::transpose_8x8(pack(c.x[k][p][2 * half], c.x[k][p][2 * half + 1], S()));
  return b;
}

// c += (rows a0 … of a)·bᵀ. Even and odd steps have separate sums, because an mma waits for the previous mma
// that adds to the same sum.
template <class S, int Rows, int Columns, int K>
__device__ __forceinline__ void mma_ABt(Accumulator<Rows, Columns>& c, SharedTile<K> a,
                                        const RightOperand<Columns, K>& b) {
  using T = Terms<S, 1>;
#pragma unroll
  for (int m = 0; m < c.groups; ++m) {
    float odd[Columns / 8][4] = {};
#pragma unroll
    for (int k = 0; k < b.steps; ++k) {
      const SplitFragment<T> left = operand_a<T>(a, 16 * m, k);
#pragma unroll
      for (int p = 0; p < b.parts; ++p)
        mma(k % 2 ? odd[p] : c.x[m][p], left.term[0], b.x[p][k][0], b.x[p][k][1], S());
    }
#pragma unroll
    for (int p = 0; p < b.parts; ++p)
#pragma unroll
      for (int e = 0; e < 4; ++e) c.x[m][p][e] += odd[p][e];
  }
}
// c += aᵀ·bᵀ
template <class S, int Rows, int Columns, int K>
__device__ __forceinline__ void mma_AtBt(Accumulator<Rows, Columns>& c, SharedTile<Rows> a,
                                         const RightOperand<Columns, K>& b) {
  using T = Terms<S, 1>;
#pragma unroll
  for (int k = 0; k < b.steps; ++k)
#pragma unroll
    for (int m = 0; m < c.groups; ++m) {
      const SplitFragment<T> left = operand_at<T>(a, k, m);
#pragma unroll
      for (int p = 0; p < b.parts; ++p) mma(c.x[m][p], left.term[0], b.x[p][k][0], b.x[p][k][1], S());
    }
}

}  // namespace tg::cuda::tile
