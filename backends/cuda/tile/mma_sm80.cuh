// Tiles of 16-bit numbers for kernels on tensor cores (mma.sync, sm_80 and later): in shared memory, as
// operands in registers, and as sums in registers. A warp holds 16·n rows; everything here is done by a whole
// warp, but load_rows, which the block does together.
//
// In registers, lane l = 4·g + t of a warp holds of each 8 × 8 part the elements (g, 2t) and (g, 2t + 1).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backends/cuda/tile/ptx_sm80.cuh"

namespace tg::cuda::tiles {

using ptx::u32, ptx::shared_address;

__device__ __forceinline__ int lane_id() {
  return threadIdx.x % 32;
}

// ---- shared memory ----

// [rows, columns], columns a multiple of 16. Pieces of 8 elements are permuted within a row so that 8 rows of
// one column of pieces lie in different banks.
template <int Columns>
struct SharedTile {
  static constexpr int columns = Columns, pieces = Columns / 8;
  u32 base;  // shared address in bytes

  __device__ static constexpr int permuted(int row, int piece) {
    constexpr int mask = pieces % 8 == 0 ? 7 : pieces % 4 == 0 ? 3 : 1;
    constexpr int shift = pieces % 8 == 0 ? 0 : pieces % 4 == 0 ? 1 : 2;
    return piece ^ ((row >> shift) & mask);
  }
  __device__ u32 address(int row, int piece) const {
    return base + (row * pieces + permuted(row, piece)) * 16;
  }
  // The same for row0 + row and pair·2 + piece with row0 a multiple of 8 and piece 0 or 1, so that a lane's
  // part is made once for all row0 and pairs. Tiles begin at multiples of 1024 bytes
  // (256 if they have at most 128 columns).
  __device__ __forceinline__ u32 address(int row0, int row, int pair, int piece) const {
    if constexpr ((pieces & (pieces - 1)) == 0) {
      return ((base + (row * pieces + permuted(row, piece)) * 16) ^ (pair * 32)) + row0 * (pieces * 16);
    } else {
      return base + (row0 + row) * (pieces * 16) + (permuted(row, piece) ^ (2 * pair)) * 16;
    }
  }
  static constexpr int bytes(int rows) { return rows * Columns * 2; }
};

// Copies rows row0 … row0+Rows-1 of a matrix [_, size] into a tile, asynchronously; rows outside [from, to)
// and columns from `size` on become zeros. Rows begin at multiples of 16 bytes, and size is one of 16 bytes.
template <int Rows, int Threads, int Columns, class S>
__device__ __forceinline__ void load_rows(SharedTile<Columns> tile, const S* data, long long stride, int row0,
                                          int from, int to, int size) {
  constexpr int pieces = Columns / 8, all = Rows * pieces, elements = 16 / sizeof(S);
  const auto copy = [](u32 to_address, const S* source, bool there) {  // without it, nothing is read there
    ptx::cp_async_16(to_address, source, there ? 16 : 0);
  };
  constexpr int step = Threads / pieces;
  if constexpr (Threads % pieces == 0 && Rows % step == 0 &&
                (step % 8 == 0 || (pieces % 8 == 0 && 8 % step == 0))) {
    // A thread keeps to its piece, and to its row modulo 8 up to an XOR with a constant.
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
__device__ __forceinline__ void commit() {
  ptx::cp_async_commit();
}
template <int Pending>
__device__ __forceinline__ void wait() {
  ptx::cp_async_wait<Pending>();
}

// ---- operands of a product ----

struct Left {  // 16 rows × 16
  u32 x[4];
};
struct Right {  // 16 × 16 columns
  u32 x[4];
};

// tile[row0 … +16][16·k … +16]
template <int C>
__device__ __forceinline__ Left left(SharedTile<C> tile, int row0, int k) {
  const int l = lane_id();
  Left a;
  ptx::ldmatrix(a.x, tile.address(row0, l % 16, k, l / 16));
  return a;
}
// The transpose of tile[column0 … +16][16·k … +16]: products of rows with rows.
template <int C>
__device__ __forceinline__ Right right_of_rows(SharedTile<C> tile, int column0, int k) {
  const int l = lane_id();
  Right b;
  ptx::ldmatrix(b.x, tile.address(column0, l / 16 * 8 + l % 8, k, l / 8 % 2));
  return b;
}
// tile[16·k … +16][16·column … +16]
template <int C>
__device__ __forceinline__ Right right(SharedTile<C> tile, int k, int column) {
  const int l = lane_id();
  Right b;
  ptx::ldmatrix_trans(b.x, tile.address(k * 16, l % 16, column, l / 16));
  return b;
}

// The transpose of tile[16·k … +16][16·row … +16].
template <int C>
__device__ __forceinline__ Left left_transposed(SharedTile<C> tile, int k, int row) {
  const int l = lane_id();
  Left a;
  ptx::ldmatrix_trans(a.x, tile.address(k * 16, l / 16 * 8 + l % 8, row, l / 8 % 2));
  return a;
}

// ---- sums ----

// 16 rows × 8·Parts columns of f32.
template <int Parts>
struct Sums {
  float x[Parts][4];  // rows g, g, g + 8, g + 8; columns 2t, 2t + 1 of each part
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& part : x)
#pragma unroll
      for (float& e : part) e = 0;
  }
};

__device__ __forceinline__ void mma_part(float (&c)[4], const Left& a, u32 b0, u32 b1, __nv_bfloat16) {
  ptx::mma_m16n8k16_bf16(c, a.x, b0, b1);
}
__device__ __forceinline__ void mma_part(float (&c)[4], const Left& a, u32 b0, u32 b1, __half) {
  ptx::mma_m16n8k16_f16(c, a.x, b0, b1);
}
// c[16·column … +16] += a·b, numbers of type S.
template <class S, int Parts>
__device__ __forceinline__ void mma(Sums<Parts>& c, int column, const Left& a, const Right& b) {
  mma_part(c.x[2 * column], a, b.x[0], b.x[1], S());
  mma_part(c.x[2 * column + 1], a, b.x[2], b.x[3], S());
}

// c[m] += rows r0 + 16·m … of a times rows c0 … of b, transposed.
template <class S, int Groups, int Parts, int C>
__device__ __forceinline__ void multiply_rows(Sums<Parts> (&c)[Groups], SharedTile<C> a, int r0,
                                              SharedTile<C> b, int c0) {
  // Operands are asked for a step ahead, where registers allow it.
  constexpr int steps = C / 16, ahead = C <= 128 ? 1 : 0, held = ahead + 1;
  Left l[held][Groups];
  Right r[held][Parts / 2];
  const auto ask = [&](int e) {
#pragma unroll
    for (int m = 0; m < Groups; ++m) l[e % held][m] = left(a, r0 + 16 * m, e);
#pragma unroll
    for (int n = 0; n < Parts / 2; ++n) r[e % held][n] = right_of_rows(b, c0 + 16 * n, e);
  };
  if (ahead) ask(0);
#pragma unroll(ahead ? steps : 2)
  for (int e = 0; e < steps; ++e) {
    if (e + ahead < steps) ask(e + ahead);
#pragma unroll
    for (int n = 0; n < Parts / 2; ++n)
#pragma unroll
      for (int m = 0; m < Groups; ++m) mma<S>(c[m], n, l[e % held][m], r[e % held][n]);
  }
}
// c[m] += rows r0 + 16·m … of a, or of its transpose, times columns c0 … c0 + Columns of b.
template <class S, int Inner, int Columns, bool transposed, int Groups, int Parts, int A, int B>
__device__ __forceinline__ void multiply_columns(Sums<Parts> (&c)[Groups], SharedTile<A> a, int r0,
                                                 SharedTile<B> b, int c0) {
  static_assert(Inner % 16 == 0 && Columns % 16 == 0 && Columns <= 8 * Parts);
#pragma unroll(Parts > 16 ? 1 : Inner / 16)
  for (int k = 0; k < Inner / 16; ++k) {
    Left l[Groups];
#pragma unroll
    for (int m = 0; m < Groups; ++m)
      l[m] = transposed ? left_transposed(a, k, r0 / 16 + m) : left(a, r0 + 16 * m, k);
#pragma unroll
    for (int e = 0; e < Columns / 16; ++e) {
      const Right r = right(b, k, c0 / 16 + e);
#pragma unroll
      for (int m = 0; m < Groups; ++m) mma<S>(c[m], e, l[m], r);
    }
  }
}

__device__ __forceinline__ u32 pack(float low, float high, __nv_bfloat16) {
  return ptx::cvt_bf16x2(low, high);
}
__device__ __forceinline__ u32 pack(float low, float high, __half) {
  return ptx::cvt_f16x2(low, high);
}
// Columns 16·k … +16 of sums as the left operand of the next product: the layouts are the same.
template <class S, int Parts>
__device__ __forceinline__ Left left(const Sums<Parts>& c, int k) {
  const auto& a = c.x[2 * k];
  const auto& b = c.x[2 * k + 1];
  return {{pack(a[0], a[1], S()), pack(a[2], a[3], S()), pack(b[0], b[1], S()), pack(b[2], b[3], S())}};
}

// Writes 16 rows of sums, rounded, to tile[row0 …][column0 …].
template <class S, int Parts, int C>
__device__ __forceinline__ void put_rows(const Sums<Parts>& c, SharedTile<C> tile, int row0, int column0) {
  const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
  for (int p = 0; p < Parts; ++p) {
    ptx::st_shared(tile.address(row0 + g, column0 / 8 + p) + 4 * t, pack(c.x[p][0], c.x[p][1], S()));
    ptx::st_shared(tile.address(row0 + g + 8, column0 / 8 + p) + 4 * t, pack(c.x[p][2], c.x[p][3], S()));
  }
}

// Rows over all lanes that share them.
__device__ __forceinline__ float row_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

__device__ __forceinline__ float exp2_fast(float x) {
  return ptx::ex2(x);
}

// ---- back to global memory ----

// Adds the first `parts` parts of 16 rows of sums to numbers in global memory that lie in the order of the
// registers, 128 a part, while other blocks do the same.
template <int Parts>
__device__ __forceinline__ void add_parts(const Sums<Parts>& c, float* data, int parts) {
#pragma unroll
  for (int p = 0; p < Parts; ++p)
    if (p < parts) ptx::red_add_v4(data + p * 128 + lane_id() * 4, c.x[p]);
}

// Writes 16 rows of sums, rounded, to rows row0 … of a matrix [rows, size] with rows as load_rows wants them,
// passing through rows tile_row0 … of a tile that this warp alone uses.
template <class S, int Parts, int C>
__device__ __forceinline__ void store_rows(const Sums<Parts>& c, SharedTile<C> tile, int tile_row0, S* data,
                                           long long stride, int row0, int rows, int size) {
  const int l = lane_id();
  __syncwarp();
  put_rows<S>(c, tile, tile_row0, 0);
  __syncwarp();
#pragma unroll
  for (int n = 0; n < Parts / 2; ++n) {  // 16·Parts pieces by 32 lanes
    const int at = n * 32 + l, row = at / Parts, piece = at % Parts;
    const uint4 v = ptx::ld_shared_v4(tile.address(tile_row0 + row, piece));
    if (row0 + row < rows && piece * 8 < size)
      *reinterpret_cast<uint4*>(data + (row0 + row) * stride + piece * 8) = v;
  }
}

}  // namespace tg::cuda::tiles
