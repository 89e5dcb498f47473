// Products on tensor cores by mma.sync (sm_80 and later) of tiles in shared memory and in registers, added to
// an Accumulator; everything is done by a whole warp.
#pragma once

#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::tile {

// ---- operands of one step ----

struct FragmentA {  // 16 rows × 16
  u32 x[4];
};
struct FragmentB {  // 16 × 16 columns
  u32 x[4];
};

// tile[row0 … +16][16·k … +16]
template <int C>
__device__ __forceinline__ FragmentA fragment_a(SharedTile<C> tile, int row0, int k) {
  const int l = lane_id();
  FragmentA a;
  ptx::ldmatrix(a.x, tile.address(row0, l % 16, k, l / 16));
  return a;
}
// The transpose of tile[16·k … +16][16·row … +16].
template <int C>
__device__ __forceinline__ FragmentA fragment_at(SharedTile<C> tile, int k, int row) {
  const int l = lane_id();
  FragmentA a;
  ptx::ldmatrix_trans(a.x, tile.address(k * 16, l / 16 * 8 + l % 8, row, l / 8 % 2));
  return a;
}
// Columns 16·k … +16 of 16 rows of sums, rounded: the layouts are the same.
template <class S, int Parts>
__device__ __forceinline__ FragmentA fragment_a(const float (&c)[Parts][4], int k) {
  const auto& a = c[2 * k];
  const auto& b = c[2 * k + 1];
  return {{pack(a[0], a[1], S()), pack(a[2], a[3], S()), pack(b[0], b[1], S()), pack(b[2], b[3], S())}};
}
// tile[16·k … +16][16·column … +16]
template <int C>
__device__ __forceinline__ FragmentB fragment_b(SharedTile<C> tile, int k, int column) {
  const int l = lane_id();
  FragmentB b;
  ptx::ldmatrix_trans(b.x, tile.address(k * 16, l % 16, column, l / 16));
  return b;
}
// The transpose of tile[column0 … +16][16·k … +16].
template <int C>
__device__ __forceinline__ FragmentB fragment_bt(SharedTile<C> tile, int column0, int k) {
  const int l = lane_id();
  FragmentB b;
  ptx::ldmatrix(b.x, tile.address(column0, l / 16 * 8 + l % 8, k, l / 8 % 2));
  return b;
}

__device__ __forceinline__ void mma_part(float (&c)[4], const FragmentA& a, u32 b0, u32 b1, __nv_bfloat16) {
  ptx::mma_m16n8k16_bf16(c, a.x, b0, b1);
}
__device__ __forceinline__ void mma_part(float (&c)[4], const FragmentA& a, u32 b0, u32 b1, __half) {
  ptx::mma_m16n8k16_f16(c, a.x, b0, b1);
}
// Columns 16·column … +16 of 16 rows of sums += a·b, numbers of type S.
template <class S, int Parts>
__device__ __forceinline__ void mma(float (&c)[Parts][4], int column, const FragmentA& a,
                                    const FragmentB& b) {
  mma_part(c[2 * column], a, b.x[0], b.x[1], S());
  mma_part(c[2 * column + 1], a, b.x[2], b.x[3], S());
}

// ---- products of tiles ----

// c += (rows r0 … of a)·(rows c0 … of b)ᵀ
template <class S, int Rows, int Columns, int C>
__device__ __forceinline__ void mma_ABt(Accumulator<Rows, Columns>& c, SharedTile<C> a, int r0,
                                        SharedTile<C> b, int c0) {
  // Operands are asked for a step ahead, where registers allow it.
  constexpr int steps = C / 16, ahead = C <= 128 ? 1 : 0, held = ahead + 1, groups = Rows / 16;
  FragmentA left[held][groups];
  FragmentB right[held][Columns / 16];
  const auto ask = [&](int k) {
#pragma unroll
    for (int m = 0; m < groups; ++m) left[k % held][m] = fragment_a(a, r0 + 16 * m, k);
#pragma unroll
    for (int n = 0; n < Columns / 16; ++n) right[k % held][n] = fragment_bt(b, c0 + 16 * n, k);
  };
  if (ahead) ask(0);
#pragma unroll(ahead ? steps : 2)
  for (int k = 0; k < steps; ++k) {
    if (k + ahead < steps) ask(k + ahead);
#pragma unroll
    for (int n = 0; n < Columns / 16; ++n)
#pragma unroll
      for (int m = 0; m < groups; ++m) mma<S>(c.x[m], n, left[k % held][m], right[k % held][n]);
  }
}
// The same of all rows of b, where registers are few: 16 rows of b alone are asked for ahead, by one product.
// `unrolled` products are written out.
template <class S, int unrolled, int Rows, int Columns, int C>
__device__ __forceinline__ void mma_ABt_lean(Accumulator<Rows, Columns>& c, SharedTile<C> a, int r0,
                                             SharedTile<C> b) {
  constexpr int columns = Columns / 16, products = C / 16 * columns, groups = Rows / 16;
  const auto rows_of_b = [&](int i) { return fragment_bt(b, i % columns * 16, i / columns); };
  FragmentA left[groups];
  FragmentB right[2] = {rows_of_b(0)};
#pragma unroll(unrolled)
  for (int i = 0; i < products; ++i) {
    if (i + 1 < products) right[(i + 1) % 2] = rows_of_b(i + 1);
    if (i % columns == 0)
#pragma unroll
      for (int m = 0; m < groups; ++m) left[m] = fragment_a(a, r0 + 16 * m, i / columns);
#pragma unroll
    for (int m = 0; m < groups; ++m) mma<S>(c.x[m], i % columns, left[m], right[i % 2]);
  }
}
// c += (rows r0 … of a, or of its transpose)·(columns c0 … c0 + N of b), over K
template <class S, int K, int N, bool transposed, int Rows, int Columns, int A, int B>
__device__ __forceinline__ void mma_columns(Accumulator<Rows, Columns>& c, SharedTile<A> a, int r0,
                                            SharedTile<B> b, int c0) {
  static_assert(K % 16 == 0 && N % 16 == 0 && N <= Columns);
  constexpr int groups = Rows / 16;
#pragma unroll(Columns > 128 ? 1 : K / 16)
  for (int k = 0; k < K / 16; ++k) {
    FragmentA left[groups];
#pragma unroll
    for (int m = 0; m < groups; ++m)
      left[m] = transposed ? fragment_at(a, k, r0 / 16 + m) : fragment_a(a, r0 + 16 * m, k);
#pragma unroll
    for (int n = 0; n < N / 16; ++n) {
      const FragmentB right = fragment_b(b, k, c0 / 16 + n);
#pragma unroll
      for (int m = 0; m < groups; ++m) mma<S>(c.x[m], n, left[m], right);
    }
  }
}
template <class S, int K, int N, int Rows, int Columns, int A, int B>
__device__ __forceinline__ void mma_AB(Accumulator<Rows, Columns>& c, SharedTile<A> a, int r0,
                                       SharedTile<B> b, int c0) {
  mma_columns<S, K, N, false>(c, a, r0, b, c0);
}
template <class S, int K, int N, int Rows, int Columns, int A, int B>
__device__ __forceinline__ void mma_AtB(Accumulator<Rows, Columns>& c, SharedTile<A> a, int r0,
                                        SharedTile<B> b, int c0) {
  mma_columns<S, K, N, true>(c, a, r0, b, c0);
}

}  // namespace tg::cuda::tile
