// f32 numbers as operands of products on tensor cores (mma.sync m16n8k8 in TF32), beside the 16-bit ones of
// tiles.cuh. A shared tile of f32 [rows, D] is a SharedTile<2·D>: pieces of 16 bytes, four numbers each; it
// begins at a multiple of 512 bytes. D is a multiple of 32.
//
// A tensor core reads of an f32 the upper 19 bits (sign, exponent, 10 bits of fraction). Operands have one or
// two Terms: x rounded to that (TF32), in a tile once for all its readers (round_rows), for else rounding
// would take more instructions than the products; or x = high + low, where a·b ≈ low·high + high·low +
// high·high loses 2⁻²² of a product (3×TF32; ∞ becomes NaN). Splitting takes 3 instructions, at each use:
// beside the 3 products that each operand meets at least twice there is room for them, while tiles split
// beforehand would take twice the shared memory and its reads.
//
// In registers, lane l = 4·g + t holds
//
//   left  16 × 8: (g, t)  (g + 8, t)  (g, t + 4)  (g + 8, t + 4)
//   right 8 × 8:  (t, g)  (t + 4, g)
//   sums  16 × 8: (g, 2t)  (g, 2t + 1)  (g + 8, 2t)  (g + 8, 2t + 1)
//
// Products of rows with rows take both operands by ldmatrix: a row of its 8 × 16 bytes is four f32, of which
// lane l gets number t of row g. In the other product the left operand is what sums hold. There the order of
// the 8 numbers summed over is free, so it is taken as 0 2 4 6 1 3 5 7: then sums are the left operand as
// they are, and the right operand's lane needs rows 2t and 2t + 1. Columns are free too: number g of part 4·s
// + e is column 32·s + 4·g + e, so that a lane's numbers of four parts are one piece, read at once; the eight
// lanes that share an access find eight banks of 16 bytes:
//
//           piece 8s   8s+1   8s+2  …  8s+7               lane 4g + t reads
//   row 2t     e=0123  e=0123  …                          row 2t, piece 8s + g  → parts 4s … 4s + 3, first
//   row 2t+1   e=0123  e=0123  …                          row 2t + 1, the same  → second
//               g = 0   g = 1          g = 7
//
// and of the product's sums it holds columns 32·s + 8·t … + 8 of its rows, side by side.
#pragma once

#include "backends/cuda/kernels/ptx.cuh"
#include "backends/cuda/kernels/tiles.cuh"

namespace tg::cuda::tiles {

enum Terms : int { tf32 = 1, tf32x3 = 2 };

// x and half a unit of what a tensor core reads: rounded to the nearest when it drops the other bits.
// (cvt.rna takes five instructions on sm_80 and sm_90, this two.) NaN and ∞ stay.
__device__ __forceinline__ float before_cut(float x) {
  const float power = __uint_as_float(__float_as_uint(x) & 0xff800000u);  // ±2ᵉ, ±∞ of NaN
  return fmaf(power, 0x1p-11f, x);
}
// Nearly that in one instruction, where the rest is not lost.
__device__ __forceinline__ float nearly_before_cut(float x) {
  return x * (1 + 0x1.7p-12f);
}

// N numbers of an operand.
template <int T, int N>
struct Operand {
  u32 x[T][N];  // T = 2: high, low

  __device__ __forceinline__ void set(int n, float a) {
    if constexpr (T == tf32)
      x[0][n] = __float_as_uint(before_cut(a));
    else
      split(n, a);
  }
  // The same of a number from a tile, which in TF32 is rounded already.
  __device__ __forceinline__ void set_from_tile(int n, u32 a) {
    if constexpr (T == tf32)
      x[0][n] = a;
    else
      split(n, __uint_as_float(a));
  }

 private:
  __device__ __forceinline__ void split(int n, float a) {
    x[0][n] = __float_as_uint(nearly_before_cut(a)) & 0xffffe000u;
    x[1][n] = __float_as_uint(a - __uint_as_float(x[0][n]));
  }
};
// In TF32: rounds what this thread copied to a tile with load_rows of as many rows and threads, once it has
// waited for it and before other threads read it.
template <int T, int Rows, int Threads, int C>
__device__ __forceinline__ void round_rows(SharedTile<C> tile) {
  if constexpr (T == tf32) {
    constexpr int pieces = C / 8, all = Rows * pieces;
    static_assert(all % Threads == 0);
#pragma unroll
    for (int n = 0; n < all / Threads; ++n) {
      const int at = n * Threads + threadIdx.x;
      const u32 address = tile.address(at / pieces, at % pieces);
      const uint4 x = ptx::ld_shared_v4(address);
      const auto rounded = [](u32 a) { return __float_as_uint(before_cut(__uint_as_float(a))); };
      ptx::st_shared_v4(address, {rounded(x.x), rounded(x.y), rounded(x.z), rounded(x.w)});
    }
  }
}

template <int T>
using LeftTf32 = Operand<T, 4>;  // 16 rows × 8
template <int T>
using RightTf32 = Operand<T, 2>;  // 8 × 8 columns

// tile[row0 … +16][8·k … +8]
template <int T, int C>
__device__ __forceinline__ LeftTf32<T> left_tf32(SharedTile<C> tile, int row0, int k) {
  const Left raw = left(tile, row0, k);
  LeftTf32<T> a;
#pragma unroll
  for (int n = 0; n < 4; ++n) a.set_from_tile(n, raw.x[n]);
  return a;
}
// Columns 8·k … +8 of sums, in the order 0 2 4 6 1 3 5 7.
template <int T, int Parts>
__device__ __forceinline__ LeftTf32<T> left_tf32(const Sums<Parts>& c, int k) {
  LeftTf32<T> a;
  a.set(0, c.x[k][0]), a.set(1, c.x[k][2]), a.set(2, c.x[k][1]), a.set(3, c.x[k][3]);
  return a;
}
// The transposes of tile[column0 … +8][8·k … +8] and of the 8 rows after.
template <int T, int C>
__device__ __forceinline__ void right_of_rows(RightTf32<T> (&b)[2], SharedTile<C> tile, int column0, int k) {
  const Right raw = right_of_rows(tile, column0, k);
#pragma unroll
  for (int n = 0; n < 4; ++n) b[n / 2].set_from_tile(n % 2, raw.x[n]);
}
// tile[8·k … +8][32·s … +32], rows in the order 0 2 4 6 1 3 5 7, columns in that of the picture.
template <int T, int C>
__device__ __forceinline__ void right(RightTf32<T> (&b)[4], SharedTile<C> tile, int k, int s) {
  const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint4 x = ptx::ld_shared_v4(tile.address(8 * k, 2 * t + n, 4 * s, g));
    b[0].set_from_tile(n, x.x), b[1].set_from_tile(n, x.y);
    b[2].set_from_tile(n, x.z), b[3].set_from_tile(n, x.w);
  }
}

// c[m] parts part … part + N − 1 += a[m]·b
template <int T, int Groups, int N, int Parts>
__device__ __forceinline__ void multiply(Sums<Parts> (&c)[Groups], int part, const LeftTf32<T> (&a)[Groups],
                                         const RightTf32<T> (&b)[N]) {
#pragma unroll
  for (int term = 0; term < (T == tf32 ? 1 : 3); ++term) {  // low·high, high·low, high·high
    const int left = T == tf32x3 && term == 0, right = T == tf32x3 && term == 1;
#pragma unroll
    for (int n = 0; n < N; ++n)
#pragma unroll
      for (int m = 0; m < Groups; ++m)
        ptx::mma_m16n8k8_tf32(c[m].x[part + n], a[m].x[left], b[n].x[right][0], b[n].x[right][1]);
  }
}
// c[m] parts part … += sum[m]
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
// when thousands of terms are summed. So in 3×TF32 products of 32 numbers start from zero and join the sum in
// an addition that rounds to the nearest.

// c[m] += (rows row0 + 16·m … of a)·(rows of b)ᵀ
template <int T, int Groups, int Parts, int C>
__device__ __forceinline__ void add_products_of_rows(Sums<Parts> (&c)[Groups], SharedTile<C> a, int row0,
                                                     SharedTile<C> b) {
  constexpr int together = 4;  // steps of 8 numbers
  const auto add_steps = [&](Sums<Parts>(&sum)[Groups], int k0) {
#pragma unroll(T == tf32 ? together : 2)
    for (int k = k0; k < k0 + together; ++k) {
      LeftTf32<T> left[Groups];
#pragma unroll
      for (int m = 0; m < Groups; ++m) left[m] = left_tf32<T>(a, row0 + 16 * m, k);
#pragma unroll
      for (int part = 0; part < Parts; part += 2) {
        RightTf32<T> right[2];
        right_of_rows<T>(right, b, 8 * part, k);
        multiply<T>(sum, part, left, right);
      }
    }
  };
#pragma unroll 1
  for (int k0 = 0; k0 < C / 16; k0 += together) {
    if constexpr (T == tf32) {
      add_steps(c, k0);
    } else {
      Sums<Parts> sum[Groups] = {};
      add_steps(sum, k0);
      add(c, 0, sum);
    }
  }
}
// c[m] += a[m]·b, columns of c in the order of the picture
template <int T, int Groups, int Columns, int Parts, int C>
__device__ __forceinline__ void add_products(Sums<Columns> (&c)[Groups], const Sums<Parts> (&a)[Groups],
                                             SharedTile<C> b) {
  if constexpr (T == tf32) {
#pragma unroll
    for (int k = 0; k < Parts; ++k) {
      LeftTf32<T> left[Groups];
#pragma unroll
      for (int m = 0; m < Groups; ++m) left[m] = left_tf32<T>(a[m], k);
#pragma unroll
      for (int s = 0; s < Columns / 4; ++s) {
        RightTf32<T> four[4];
        right<T>(four, b, k, s);
        multiply<T>(c, 4 * s, left, four);
      }
    }
  } else {
#pragma unroll
    for (int s = 0; s < Columns / 4; ++s) {
      Sums<4> sum[Groups] = {};
#pragma unroll
      for (int k = 0; k < Parts; ++k) {
        LeftTf32<T> left[Groups];
#pragma unroll
        for (int m = 0; m < Groups; ++m) left[m] = left_tf32<T>(a[m], k);
        RightTf32<T> four[4];
        right<T>(four, b, k, s);
        multiply<T>(sum, 0, left, four);
      }
      add(c, 4 * s, sum);
    }
  }
}

// Writes 16 rows of sums with columns in the order that right() gave them to rows row0 … of a matrix
// [rows, size] with rows as load_rows wants them.
template <int Parts>
__device__ __forceinline__ void store_rows(const Sums<Parts>& c, float* data, long long stride, int row0,
                                           int rows, int size) {
  const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = row0 + 8 * r + g;
#pragma unroll
    for (int p = 0; p < Parts; p += 4)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * p + 8 * t + 4 * e;
        const auto at = [&](int n) { return c.x[p + n][2 * r + e]; };
        if (row < rows && column < size)
          *reinterpret_cast<float4*>(data + row * stride + column) = {at(0), at(1), at(2), at(3)};
      }
  }
}

}  // namespace tg::cuda::tiles
