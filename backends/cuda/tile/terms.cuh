// Products whose operands are one or two 16-bit numbers each. One is the number itself, or an f32 rounded to
// f16, which has TF32's 10 bits of fraction; two are an f32 x = high + low, where a·b ≈ low·high + high·low +
// high·high loses 2⁻²² of a product. Powers of two that bring f32 into f16's range are the caller's
// (attention/split_terms.cu).
//
// A shared tile [rows, D] of numbers of two terms is a SharedTile<2·D>, of which the first D columns hold the
// first terms and the last D the second ones.
#pragma once

#include "backends/cuda/tile/mma_sm80.cuh"

namespace tg::cuda::tile {

// What the operands of a kernel are made of.
template <class S, int Count>
struct Terms {
  using type = S;
  static constexpr int count = Count;

  struct A {
    FragmentA term[Count];  // high, low
  };
  struct B {
    FragmentB term[Count];
  };
};

// Columns 16·k … +16 of 16 rows of sums.
template <class T, int Parts>
__device__ __forceinline__ typename T::A terms_a(const float (&c)[Parts][4], int k) {
  typename T::A a;
  a.term[0] = fragment_a<typename T::type>(c, k);
  if constexpr (T::count == 2) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const auto& x = c[2 * k + n / 2];
      const float2 high = ptx::unpack_f16x2(a.term[0].x[n]);
      a.term[1].x[n] = pack(x[n % 2 * 2] - high.x, x[n % 2 * 2 + 1] - high.y, __half());
    }
  }
  return a;
}

// c columns 16·column … +16 += a·b, a by groups of 16 rows
template <class T, int Rows, int Columns>
__device__ __forceinline__ void multiply(Accumulator<Rows, Columns>& c, int column,
                                         const typename T::A (&a)[Rows / 16], const typename T::B& b) {
  using S = typename T::type;
  if constexpr (T::count == 2) {
#pragma unroll
    for (int m = 0; m < Rows / 16; ++m) mma<S>(c.x[m], column, a[m].term[1], b.term[0]);
#pragma unroll
    for (int m = 0; m < Rows / 16; ++m) mma<S>(c.x[m], column, a[m].term[0], b.term[1]);
  }
#pragma unroll
  for (int m = 0; m < Rows / 16; ++m) mma<S>(c.x[m], column, a[m].term[0], b.term[0]);
}
// c from part `part` on += sum
template <int Rows, int N, int Columns>
__device__ __forceinline__ void add(Accumulator<Rows, Columns>& c, int part,
                                    const Accumulator<Rows, N>& sum) {
#pragma unroll
  for (int m = 0; m < Rows / 16; ++m)
#pragma unroll
    for (int n = 0; n < N / 8; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) c.x[m][part + n][e] += sum.x[m][n][e];
}

// A tensor core cuts what it adds to a sum down to the sum's 24 bits, always towards zero, which shows in f32
// when thousands of terms are summed. So with two terms products of at most 64 numbers start from zero and
// join the sum in an addition that rounds to the nearest.

// c += (rows row0 … of a)·(rows of b)ᵀ, `most` steps of 16 numbers written out
template <class T, int most = 4, int Rows, int Columns, int C>
__device__ __forceinline__ void mma_ABt(Accumulator<Rows, Columns>& c, SharedTile<C> a, int row0,
                                        SharedTile<C> b) {
  constexpr int steps = C / T::count / 16, together = steps < most ? steps : most;
  const auto add_steps = [&](Accumulator<Rows, Columns>& sum, int k0) {
#pragma unroll(T::count == 1 ? together : C > 128 ? 1 : 2)
    for (int k = 0; k < together; ++k) {
      typename T::A left[Rows / 16];
#pragma unroll
      for (int m = 0; m < Rows / 16; ++m)
#pragma unroll
        for (int n = 0; n < T::count; ++n) left[m].term[n] = fragment_a(a, row0 + 16 * m, n * steps + k0 + k);
#pragma unroll
      for (int column = 0; column < Columns / 16; ++column) {
        typename T::B right;
#pragma unroll
        for (int n = 0; n < T::count; ++n) right.term[n] = fragment_bt(b, 16 * column, n * steps + k0 + k);
        multiply<T>(sum, column, left, right);
      }
    }
  };
#pragma unroll 1
  for (int k0 = 0; k0 < steps; k0 += together) {
    if constexpr (T::count == 1) {
      add_steps(c, k0);
    } else {
      Accumulator<Rows, Columns> sum = {};
      add_steps(sum, k0);
      add(c, 0, sum);
    }
  }
}
// c += a·(columns column0 … of b)
template <class T, int Rows, int Inner, int Columns, int C>
__device__ __forceinline__ void mma_AB(Accumulator<Rows, Columns>& c, Accumulator<Rows, Inner>& a,
                                       SharedTile<C> b, int column0 = 0) {
  constexpr int steps = Inner / 16, groups = Rows / 16;
  static_assert(steps <= 4);
  const auto add_step = [&](auto& sum, int to, const auto& left, int k, int column) {
    typename T::B right;
#pragma unroll
    for (int n = 0; n < T::count; ++n)
      right.term[n] = fragment_b(b, k, (n * (C / T::count) + column0) / 16 + column);
    multiply<T>(sum, to, left, right);
  };
  const auto operands = [&](int k, typename T::A(&left)[groups]) {
#pragma unroll
    for (int m = 0; m < groups; ++m) left[m] = terms_a<T>(a.x[m], k);
  };
  if constexpr (T::count == 1) {
#pragma unroll
    for (int k = 0; k < steps; ++k) {
      typename T::A left[groups];
      operands(k, left);
#pragma unroll
      for (int column = 0; column < Columns / 16; ++column) add_step(c, column, left, k, column);
    }
  } else {
    constexpr int together = 2;  // pieces of 16 columns whose sums are under way at a time
    typename T::A left[steps][groups];
#pragma unroll
    for (int k = 0; k < steps; ++k) operands(k, left[k]);
#pragma unroll
    for (int column = 0; column < Columns / 16; column += together) {
      Accumulator<Rows, 16 * together> sum = {};
#pragma unroll
      for (int k = 0; k < steps; ++k)
#pragma unroll
        for (int n = 0; n < together; ++n) add_step(sum, n, left[k], k, column + n);
      add(c, 2 * column, sum);
    }
  }
}

}  // namespace tg::cuda::tile
