// f32 numbers as operands of products on tensor cores, each as one or two numbers of 16 bits (mma_sm80.cuh):
// x rounded to f16, which has TF32's 10 bits of fraction, or x = high + low, where a·b ≈ low·high + high·low
// + high·high loses 2⁻²² of a product. Powers of two that bring numbers into f16's range are the caller's
// (split_terms.cuh).
//
// A shared tile [rows, D] of numbers of T terms is a SharedTile<T·D>, of which the first D columns hold the
// first terms and the last D the second ones.
#pragma once

#include "backends/cuda/tile/mma_sm80.cuh"

namespace tg::cuda::tiles {

// Operands of T terms: high, low.
template <int T>
struct LeftTerms {  // 16 rows × 16
  Left term[T];
};
template <int T>
struct RightTerms {  // 16 × 16 columns
  Right term[T];
};

// Columns 16·k … +16 of 16 rows of sums.
template <int T, int Parts>
__device__ __forceinline__ LeftTerms<T> left_terms(const Sums<Parts>& c, int k) {
  LeftTerms<T> a;
  a.term[0] = left<__half>(c, k);
  if constexpr (T == 2) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const auto& x = c.x[2 * k + n / 2];
      const float2 high = ptx::unpack_f16x2(a.term[0].x[n]);
      a.term[1].x[n] = pack(x[n % 2 * 2] - high.x, x[n % 2 * 2 + 1] - high.y, __half());
    }
  }
  return a;
}

// c[m] columns 16·column … +16 += a[m]·b
template <int T, int Groups, int Parts>
__device__ __forceinline__ void multiply(Sums<Parts> (&c)[Groups], int column,
                                         const LeftTerms<T> (&a)[Groups], const RightTerms<T>& b) {
  if constexpr (T == 2) {
#pragma unroll
    for (int m = 0; m < Groups; ++m) mma<__half>(c[m], column, a[m].term[1], b.term[0]);
#pragma unroll
    for (int m = 0; m < Groups; ++m) mma<__half>(c[m], column, a[m].term[0], b.term[1]);
  }
#pragma unroll
  for (int m = 0; m < Groups; ++m) mma<__half>(c[m], column, a[m].term[0], b.term[0]);
}
// c[m] from part `part` on += sum[m]
template <int Groups, int N, int Parts>
__device__ __forceinline__ void add(Sums<Parts> (&c)[Groups], int part, const Sums<N> (&sum)[Groups]) {
#pragma unroll
  for (int m = 0; m < Groups; ++m)
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) c[m].x[part + n][e] += sum[m].x[n][e];
}

// A tensor core cuts what it adds to a sum down to the sum's 24 bits, always towards zero, which shows in f32
// when thousands of terms are summed. So with two terms products of at most 64 numbers start from zero and
// join the sum in an addition that rounds to the nearest.

// c[m] += (rows row0 + 16·m … of a)·(rows of b)ᵀ
template <int T, int Groups, int Parts, int C>
__device__ __forceinline__ void add_products_of_rows(Sums<Parts> (&c)[Groups], SharedTile<C> a, int row0,
                                                     SharedTile<C> b) {
  constexpr int steps = C / T / 16, together = steps < 4 ? steps : 4;  // of 16 numbers
  const auto add_steps = [&](Sums<Parts>(&sum)[Groups], int k0) {
#pragma unroll(T == 1 ? together : C > 128 ? 1 : 2)
    for (int k = 0; k < together; ++k) {
      LeftTerms<T> l[Groups];
#pragma unroll
      for (int m = 0; m < Groups; ++m)
#pragma unroll
        for (int n = 0; n < T; ++n) l[m].term[n] = left(a, row0 + 16 * m, n * steps + k0 + k);
#pragma unroll
      for (int column = 0; column < Parts / 2; ++column) {
        RightTerms<T> r;
#pragma unroll
        for (int n = 0; n < T; ++n) r.term[n] = right_of_rows(b, 16 * column, n * steps + k0 + k);
        multiply<T>(sum, column, l, r);
      }
    }
  };
#pragma unroll 1
  for (int k0 = 0; k0 < steps; k0 += together) {
    if constexpr (T == 1) {
      add_steps(c, k0);
    } else {
      Sums<Parts> sum[Groups] = {};
      add_steps(sum, k0);
      add(c, 0, sum);
    }
  }
}
// c[m] += a[m]·b
template <int T, int Groups, int Columns, int Parts, int C>
__device__ __forceinline__ void add_products(Sums<Columns> (&c)[Groups], const Sums<Parts> (&a)[Groups],
                                             SharedTile<C> b) {
  constexpr int steps = Parts / 2;
  static_assert(steps <= 4 && Columns * 8 * T == C);
  const auto add_step = [&](auto& sum, int to, const LeftTerms<T>(&l)[Groups], int k, int column) {
    RightTerms<T> r;
#pragma unroll
    for (int n = 0; n < T; ++n) r.term[n] = right(b, k, n * (Columns / 2) + column);
    multiply<T>(sum, to, l, r);
  };
  LeftTerms<T> l[steps][Groups];
#pragma unroll
  for (int k = 0; k < steps; ++k)
#pragma unroll
    for (int m = 0; m < Groups; ++m) l[k][m] = left_terms<T>(a[m], k);
  if constexpr (T == 1) {
#pragma unroll
    for (int k = 0; k < steps; ++k)
#pragma unroll
      for (int column = 0; column < Columns / 2; ++column) add_step(c, column, l[k], k, column);
  } else {
    constexpr int together = 2;  // pieces of 16 columns whose sums are under way at a time
#pragma unroll
    for (int column = 0; column < Columns / 2; column += together) {
      Sums<2 * together> sum[Groups] = {};
#pragma unroll
      for (int k = 0; k < steps; ++k)
#pragma unroll
        for (int n = 0; n < together; ++n) add_step(sum, n, l[k], k, column + n);
      add(c, 2 * column, sum);
    }
  }
}

// Writes 16 rows of sums to rows row0 … of a matrix [rows, size] with rows
// that begin at multiples of 8 bytes.
template <int Parts>
__device__ __forceinline__ void store_rows(const Sums<Parts>& c, float* data, long long stride, int row0,
                                           int rows, int size) {
  const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = row0 + 8 * r + g;
#pragma unroll
    for (int p = 0; p < Parts; ++p) {
      const int column = 8 * p + 2 * t;
      if (row < rows && column < size)
        *reinterpret_cast<float2*>(data + row * stride + column) = {c.x[p][2 * r], c.x[p][2 * r + 1]};
    }
  }
}

}  // namespace tg::cuda::tiles
