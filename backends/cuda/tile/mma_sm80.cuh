// Tensor core GEMMs by mma.sync (sm_80 and later). Operands are tiles in shared memory or in registers.
// Results are added to an Accumulator. A whole warp calls each function. For unsplit 16-bit elements, T is
// Terms<S, 1>.
#pragma once

#include "backends/cuda/tile/terms.cuh"

namespace tg::cuda::tile {

// A tensor core truncates each addend to the 24 bits of the sum, always toward zero. This is visible in f32
// sums of thousands of products. Split-precision GEMMs therefore start from zero for each 64 elements of k.
// An addition that rounds to nearest then adds the result to the sum.

// How far an operand is loaded ahead of its mma. This depends on the available registers:
// - none: not ahead
// - rows_of_b: 16 rows of b, one mma ahead
// - step: both operands, one step of 16 elements ahead
enum class Ahead { none, rows_of_b, step };

// c += (rows a0 … of a)·(rows b0 … of b)ᵀ over `count` steps of 16 elements, starting at k0. The loop is
// unrolled `unrolled` times.
template <class T, Ahead ahead, int count, int unrolled, int Rows, int Columns, int C>
__device__ __forceinline__ void add_steps(Accumulator<Rows, Columns>& c, SharedTile<C> a, int a0,
                                          SharedTile<C> b, int b0, int k0) {
  // `together` right operands are loaded at a time, `distance` multiplications ahead.
  constexpr int columns = Columns / 16, products = count * columns,
                together = ahead == Ahead::step ? columns : 1, distance = ahead == Ahead::none ? 0 : together,
                lefts = ahead == Ahead::step ? 2 : 1, rights = together + distance;
  SplitFragment<T> left[lefts][Rows / 16], right[rights];
  const auto ask_left = [&](int k) {
#pragma unroll
    for (int m = 0; m < Rows / 16; ++m) left[k % lefts][m] = operand_a<T>(a, a0 + 16 * m, k0 + k);
  };
  const auto ask_right = [&](int first, int end) {  // for these multiplications
#pragma unroll
    for (int i = first; i < end; ++i)
      if (i < products) right[i % rights] = operand_bt<T>(b, b0 + i % columns * 16, k0 + i / columns);
  };
  if (ahead == Ahead::step) ask_left(0);
  ask_right(0, distance);
#pragma unroll(unrolled)
  for (int k = 0; k < count; ++k) {
    const int next = ahead == Ahead::step ? k + 1 : k;
    if (next < count) ask_left(next);
#pragma unroll
    for (int n = 0; n < columns; ++n) {
      const int i = k * columns + n;
      if (n % together == 0) ask_right(i + distance, i + distance + together);
      multiply<T>(c, n, left[k % lefts], right[i % rights]);
    }
  }
}
// c += (rows a0 … of a)·(rows b0 … of b)ᵀ
template <class T, Ahead ahead = Ahead::none, int unrolled = 4, int Rows, int Columns, int C>
__device__ __forceinline__ void mma_ABt(Accumulator<Rows, Columns>& c, SharedTile<C> a, int a0,
                                        SharedTile<C> b, int b0 = 0) {
  constexpr int steps = C / T::count / 16, together = steps < 4 ? steps : 4;
  if constexpr (T::count == 1) {
    add_steps<T, ahead, steps, unrolled>(c, a, a0, b, b0, 0);
  } else {
#pragma unroll 1
    for (int k0 = 0; k0 < steps; k0 += together) {
      Accumulator<Rows, Columns> sum = {};
      add_steps<T, ahead, together, C <= 128 ? 2 : 1>(sum, a, a0, b, b0, k0);
      add(c, 0, sum);
    }
  }
}

// c += left·(columns b0 … b0 + N of b) over K. left(k, m) is rows 16·m … of step k.
template <class T, int K, int N, bool unrolled, class Left, int Rows, int Columns, int C>
__device__ __forceinline__ void add_columns(Accumulator<Rows, Columns>& c, Left&& left, SharedTile<C> b,
                                            int b0) {
  static_assert(K % 16 == 0 && N % 16 == 0 && N <= Columns);
#pragma unroll(unrolled ? K / 16 : 1)
  for (int k = 0; k < K / 16; ++k) {
    SplitFragment<T> rows[Rows / 16];
#pragma unroll
    for (int m = 0; m < Rows / 16; ++m) rows[m] = left(k, m);
#pragma unroll
    for (int n = 0; n < N / 16; ++n) multiply<T>(c, n, rows, operand_b<T>(b, k, b0 / 16 + n));
  }
}
// c += (rows a0 … of a)·(columns b0 … b0 + N of b) over K
template <class T, int K, int N, int Rows, int Columns, int A, int B>
__device__ __forceinline__ void mma_AB(Accumulator<Rows, Columns>& c, SharedTile<A> a, int a0,
                                       SharedTile<B> b, int b0) {
  add_columns<T, K, N, Columns <= 128>(
      c, [&](int k, int m) { return operand_a<T>(a, a0 + 16 * m, k); }, b, b0);
}
// c += (columns a0 … of a)ᵀ·(columns b0 … b0 + N of b) over K
template <class T, int K, int N, int Rows, int Columns, int A, int B>
__device__ __forceinline__ void mma_AtB(Accumulator<Rows, Columns>& c, SharedTile<A> a, int a0,
                                        SharedTile<B> b, int b0) {
  add_columns<T, K, N, Columns <= 128>(
      c, [&](int k, int m) { return operand_at<T>(a, k, a0 / 16 + m); }, b, b0);
}
// c += a·(columns b0 … of b)
template <class T, int Rows, int Inner, int Columns, int C>
__device__ __forceinline__ void mma_AB(Accumulator<Rows, Columns>& c, Accumulator<Rows, Inner>& a,
                                       SharedTile<C> b, int b0 = 0) {
  constexpr int steps = Inner / 16;
  if constexpr (T::count == 1) {
    add_columns<T, Inner, Columns, true>(
        c, [&](int k, int m) { return operand_a<T>(a.x[m], k); }, b, b0);
  } else {
    static_assert(steps <= 4);
    constexpr int together = 2;  // groups of 16 columns that are computed at a time
    SplitFragment<T> left[steps][Rows / 16];
#pragma unroll
    for (int k = 0; k < steps; ++k)
#pragma unroll
      for (int m = 0; m < Rows / 16; ++m) left[k][m] = operand_a<T>(a.x[m], k);
#pragma unroll
    for (int n = 0; n < Columns / 16; n += together) {
      Accumulator<Rows, 16 * together> sum = {};
      add_columns<T, Inner, 16 * together, true>(
          sum, [&](int k, int m) -> const SplitFragment<T>& { return left[k][m]; }, b, b0 + 16 * n);
      add(c, 2 * n, sum);
    }
  }
}

}  // namespace tg::cuda::tile
