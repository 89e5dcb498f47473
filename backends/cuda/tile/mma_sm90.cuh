// Warpgroup GEMMs by wgmma (sm_90a). Each function starts one GEMM, in a separate wgmma group. The GEMM is
// complete after wait_for_products(). Until then its operands and sums must not be modified. An Accumulator
// holds a warp's 16 rows.
#pragma once

#include "backends/cuda/tile/accumulator.cuh"
#include "backends/cuda/tile/shared_sm80.cuh"
#include "backends/cuda/tile/shared_sm90.cuh"
#include "backends/cuda/tile/terms.cuh"

namespace tg::cuda::tile {

// Keeps the compiler from moving uses of the registers across this point. The compiler does not know that
// wgmma uses these registers asynchronously.
template <int Rows, int Columns>
__device__ __forceinline__ void keep(Accumulator<Rows, Columns>& c) {
  for_each(c, [](int, int, float& e) { ptx::keep(e); });
}

// A left operand in registers: a warp's 16 rows of K columns, rounded to 16 bits.
template <int K>
struct Packed {
  u32 x[K / 16][4];
};
template <int K>
__device__ __forceinline__ void keep(Packed<K>& a) {
#pragma unroll
  for (int n = 0; n < K / 4; ++n) ptx::keep(a.x[n / 4][n % 4]);
}
template <class S, int K>
__device__ __forceinline__ void pack(Packed<K>& to, Accumulator<16, K>& from) {
#pragma unroll
  for (int k = 0; k < K / 16; ++k)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float(&pair)[4] = from.x[0][2 * k + e / 2];
      to.x[k][e] = pack(pair[e % 2 * 2], pair[e % 2 * 2 + 1], S());
    }
}

// A left operand in registers. Its elements are rounded to one 16-bit value, or split into two values, high
// and low (terms.cuh).
template <class T, int K>
struct PackedF16Split {
  Packed<K> term[T::count];
};
template <class T, int K>
__device__ __forceinline__ void keep(PackedF16Split<T, K>& a) {
#pragma unroll
  for (Packed<K>& term : a.term) keep(term);
}
template <class S, class T, int K>
__device__ __forceinline__ void pack(PackedF16Split<T, K>& to, Accumulator<16, K>& from) {
#pragma unroll
  for (int k = 0; k < K / 16; ++k) {
    const SplitFragment<T> a = operand_a<T>(from.x[0], k);
#pragma unroll
    for (int n = 0; n < T::count; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) to.term[n].x[k][e] = a.term[n].x[e];
  }
}

// Waits until all except the last `pending` GEMMs are complete.
template <int pending>
__device__ __forceinline__ void wait_for_products() {
  ptx::wgmma_wait<pending>();
}

// Step k of a tile as an operand, starting at row `first`, or at column `first` if transposed.
template <bool transposed, class Tile>
__device__ __forceinline__ u64 operand(Tile tile, int first, int k) {
  return transposed ? tile.along_rows(first, k) : tile.along_columns(first, k);
}
// c = a·b over K, 64 × K and K × N, or c += a·b. wgmma reads b transposed in place. `tb`: the rows of b run
// along K.
template <class S, int K, bool ta, bool tb, bool adds = false, int N, class A, class B>
__device__ __forceinline__ void begin_product(Accumulator<16, N>& c, A a, int a0, B b, int b0) {
  using Product = ptx::Wgmma<S, N>;
  if constexpr (adds) keep(c);
  ptx::wgmma_fence();
  if constexpr (adds)
    Product::template add<ta, tb>(c.x[0], operand<ta>(a, a0, 0), operand<tb>(b, b0, 0));
  else
    Product::template begin<ta, tb>(c.x[0], operand<ta>(a, a0, 0), operand<tb>(b, b0, 0));
#pragma unroll
  for (int k = 1; k < K / 16; ++k)
    Product::template add<ta, tb>(c.x[0], operand<ta>(a, a0, k), operand<tb>(b, b0, k));
  ptx::wgmma_commit();
  keep(c);
}
// c = (64 rows of a, starting at a0)·(N rows of b, starting at b0)ᵀ over K columns
template <class S, int K, int N, class A, class B>
__device__ __forceinline__ void begin_ABt(Accumulator<16, N>& c, A a, int a0, B b, int b0 = 0) {
  begin_product<S, K, false, false>(c, a, a0, b, b0);
}
// The same GEMM, added to c
template <class S, int K, int N, class A, class B>
__device__ __forceinline__ void begin_adding_ABt(Accumulator<16, N>& c, A a, int a0, B b, int b0 = 0) {
  begin_product<S, K, false, false, true>(c, a, a0, b, b0);
}
// c = (64 rows of a, starting at a0)·(N columns of b, starting at b0) over K
template <class S, int K, int N, class A, class B>
__device__ __forceinline__ void begin_AB(Accumulator<16, N>& c, A a, int a0, B b, int b0) {
  begin_product<S, K, false, true>(c, a, a0, b, b0);
}
// The same GEMM, added to c
template <class S, int K, int N, class A, class B>
__device__ __forceinline__ void begin_adding_AB(Accumulator<16, N>& c, A a, int a0, B b, int b0) {
  begin_product<S, K, false, true, true>(c, a, a0, b, b0);
}
// c = (64 columns of a, starting at a0)ᵀ·(N rows of b, starting at 0)ᵀ over K
template <class S, int K, int N, class A, class B>
__device__ __forceinline__ void begin_AtBt(Accumulator<16, N>& c, A a, int a0, B b) {
  begin_product<S, K, true, false>(c, a, a0, b, 0);
}
// c = (64 columns of a, starting at a0)ᵀ·(N columns of b, starting at b0) over K
template <class S, int K, int N, class A, class B>
__device__ __forceinline__ void begin_AtB(Accumulator<16, N>& c, A a, int a0, B b, int b0) {
  begin_product<S, K, true, true>(c, a, a0, b, b0);
}
// The GEMM of begin_AtBt, added to c
template <class S, int K, int N, class A, class B>
__device__ __forceinline__ void begin_adding_AtBt(Accumulator<16, N>& c, A a, int a0, B b) {
  begin_product<S, K, true, false, true>(c, a, a0, b, 0);
}
// c += a·(columns b0 … of b) or c = a·b, with a in registers
template <class S, bool adds = true, int K, int N, class B>
__device__ __forceinline__ void begin_AB(Accumulator<16, N>& c, Packed<K>& a, B b, int b0 = 0) {
  using Product = ptx::Wgmma<S, N>;
  keep(a);
  if constexpr (adds) keep(c);
  ptx::wgmma_fence();
  if constexpr (adds)
    Product::template add<true>(c.x[0], a.x[0], b.along_rows(b0, 0));
  else
    Product::template begin<true>(c.x[0], a.x[0], b.along_rows(b0, 0));
#pragma unroll
  for (int k = 1; k < K / 16; ++k) Product::template add<true>(c.x[0], a.x[k], b.along_rows(b0, k));
  ptx::wgmma_commit();
  keep(c), keep(a);
}

// GEMMs of split operands (terms.cuh) with D elements per row: low·high, high·low and high·high are started
// in this order. The first half of a tile's columns contains the high parts, the second half the low parts.
template <class T>
constexpr int products_of_f16_split = T::count == 2 ? 3 : 1;
// c = (64 rows of a, starting at a0)·(N rows of b)ᵀ
template <class T, int D, int N, class A, class B>
__device__ __forceinline__ void begin_f16_split_ABt(Accumulator<16, N>& c, A a, int a0, B b) {
  using S = typename T::type;
  if constexpr (T::count == 1) {
    begin_ABt<S, D>(c, a, a0, b);
  } else {
    const auto a_high = a.template part<2>(0), a_low = a.template part<2>(1);
    const auto b_high = b.template part<2>(0), b_low = b.template part<2>(1);
    begin_ABt<S, D>(c, a_low, a0, b_high);
    begin_adding_ABt<S, D>(c, a_high, a0, b_low);
    begin_adding_ABt<S, D>(c, a_high, a0, b_high);
  }
}

// product = a·(columns b0 … of b), with a in registers, both split in two
template <class S, int K, int N, class B>
__device__ __forceinline__ void begin_terms_AB(Accumulator<16, N>& product, PackedF16Split<Terms<S, 2>, K>& a,
                                               B b, int b0 = 0) {
  const auto high = b.template part<2>(0), low = b.template part<2>(1);
  begin_AB<S, false>(product, a.term[1], high, b0);
  begin_AB<S>(product, a.term[0], low, b0);
  begin_AB<S>(product, a.term[0], high, b0);
}
// c = (64 columns of a, starting at a0)ᵀ·(N rows of b)ᵀ over K, both split in two
template <class T, int K, int N, class A, class B>
__device__ __forceinline__ void begin_terms_AtBt(Accumulator<16, N>& c, A a, int a0, B b) {
  using S = typename T::type;
  const auto a_high = a.template part<2>(0), a_low = a.template part<2>(1);
  const auto b_high = b.template part<2>(0), b_low = b.template part<2>(1);
  begin_AtBt<S, K>(c, a_low, a0, b_high);
  begin_adding_AtBt<S, K>(c, a_high, a0, b_low);
  begin_adding_AtBt<S, K>(c, a_high, a0, b_high);
}

// A sum c += a·b, with a in registers. Unsplit operands are accumulated by the tensor cores. Tensor cores
// truncate each addend to the 24 bits of the sum, always toward zero. This is visible in f32 sums of
// thousands of products. With split operands, each GEMM therefore starts from zero. An addition that rounds
// to nearest then adds the result to the sum.
template <class T, int N>
struct SumOfProducts {
  Accumulator<16, N> all;
  template <int K, class B>
  __device__ __forceinline__ void begin_AB(PackedF16Split<T, K>& a, B b) {
    tile::begin_AB<typename T::type>(all, a.term[0], b);
  }
  __device__ __forceinline__ void end() { keep(all); }
};
template <class S, int N>
struct SumOfProducts<Terms<S, 2>, N> {
  Accumulator<16, N> all, product;
  template <int K, class B>
  __device__ __forceinline__ void begin_AB(PackedF16Split<Terms<S, 2>, K>& a, B b) {
    begin_terms_AB(product, a, b);
  }
  __device__ __forceinline__ void end() {
    keep(product);
    add(all, 0, product);
  }
};

}  // namespace tg::cuda::tile
