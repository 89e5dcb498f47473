// Operands of mma.sync with elements of one or two 16-bit values. A single value is the element itself, or an
// f32 rounded to f16. An f16 has 10 mantissa bits, like TF32. Two values are an f16 split of an f32, x = high
// + low. Then a·b ≈ low·high + high·low + high·high, with a relative error of 2⁻²². The caller scales f32
// elements by powers of two, so that they fit in f16 (attention/split_to_f16.cu).
//
// A shared tile [rows, D] of split elements is a SharedTile<2·D>. Its first D columns contain the high parts,
// and its last D the low parts.
#pragma once

#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::tile {

// The element type of a kernel's operands.
template <class S, int Count>
struct Terms {
  using type = S;
  static constexpr int count = Count;
};

// 16 × 16 elements of a left or right operand in the layout of mma.sync.
struct Fragment {
  u32 x[4];
};
template <class T>
struct SplitFragment {
  Fragment term[T::count];  // high, low
};

// Loads four 8 × 8 parts of a tile, starting at row0 and column 16·pair. Each part may be transposed. The
// second part is below the first one (`down`) or to the right of it.
template <class T, bool transposed, bool down, int C>
__device__ __forceinline__ SplitFragment<T> load_parts(SharedTile<C> tile, int row0, int pair) {
  const int l = lane_id(), row = down ? l % 16 : l / 16 * 8 + l % 8, piece = down ? l / 16 : l / 8 % 2;
  SplitFragment<T> operand;
#pragma unroll
  for (int n = 0; n < T::count; ++n) {
    const u32 address = tile.address(row0, row, n * (C / T::count / 16) + pair, piece);
    transposed ? ptx::ldmatrix_trans(operand.term[n].x, address) : ptx::ldmatrix(operand.term[n].x, address);
  }
  return operand;
}
// Left operands: a[row0 … +16][16·k … +16], and the transpose of a[16·k … +16][16·row … +16].
template <class T, int C>
__device__ __forceinline__ SplitFragment<T> operand_a(SharedTile<C> a, int row0, int k) {
  return load_parts<T, false, true>(a, row0, k);
}
template <class T, int C>
__device__ __forceinline__ SplitFragment<T> operand_at(SharedTile<C> a, int k, int row) {
  return load_parts<T, true, false>(a, 16 * k, row);
}
// Right operands: b[16·k … +16][16·column … +16], and the transpose of b[column0 … +16][16·k … +16].
template <class T, int C>
__device__ __forceinline__ SplitFragment<T> operand_b(SharedTile<C> b, int k, int column) {
  return load_parts<T, true, true>(b, 16 * k, column);
}
template <class T, int C>
__device__ __forceinline__ SplitFragment<T> operand_bt(SharedTile<C> b, int column0, int k) {
  return load_parts<T, false, false>(b, column0, k);
}
// A left operand from columns 16·k … +16 of 16 rows of rounded sums. Sums and operands have the same layout.
template <class T, int Parts>
__device__ __forceinline__ SplitFragment<T> operand_a(const float (&c)[Parts][4], int k) {
  SplitFragment<T> a;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const float* x = &c[2 * k + n / 2][n % 2 * 2];
    a.term[0].x[n] = pack(x[0], x[1], typename T::type());
    if constexpr (T::count == 2) {
      const float2 high = ptx::unpack_f16x2(a.term[0].x[n]);
      a.term[1].x[n] = pack(x[0] - high.x, x[1] - high.y, __half());
    }
  }
  return a;
}

__device__ __forceinline__ void mma(float (&c)[4], const Fragment& a, u32 b0, u32 b1, __nv_bfloat16) {
  ptx::mma_m16n8k16_bf16(c, a.x, b0, b1);
}
__device__ __forceinline__ void mma(float (&c)[4], const Fragment& a, u32 b0, u32 b1, __half) {
  ptx::mma_m16n8k16_f16(c, a.x, b0, b1);
}
// Columns 16·column … +16 of c += a·b. a consists of groups of 16 rows.
template <class T, int Rows, int Columns>
__device__ __forceinline__ void multiply(Accumulator<Rows, Columns>& c, int column,
                                         const SplitFragment<T> (&a)[Rows / 16], const SplitFragment<T>& b) {
#pragma unroll
  for (int n = T::count == 2 ? 2 : 0; n >= 0; --n)  // low·high, high·low, high·high
#pragma unroll
    for (int m = 0; m < Rows / 16; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const u32(&right)[4] = b.term[n == 1].x;
        mma(c.x[m][2 * column + half], a[m].term[n == 2], right[2 * half], right[2 * half + 1],
            typename T::type());
      }
}
// c += sum, starting at part `part`
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

}  // namespace tg::cuda::tile
