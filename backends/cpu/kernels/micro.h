// The register-tiled micro-kernel of gemm and attention. A tile of C stays in registers during the whole k
// loop. Elements of A are broadcast from any strides, and rows of B are read as vectors.
#pragma once

#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

// The bf16 units that this instruction set may use if the processor has them. The compiler may not generate
// the instructions of these units, so they are inline assembly.
#if TG_VECTOR_BYTES == 64 && defined(__GNUC__) && !defined(__clang__)
inline constexpr bool has_pairs = true;
#if defined(__linux__)
#define TG_BF16_TILES
#endif
#else
inline constexpr bool has_pairs = false;
#endif

// Elements along k that a lane processes at a time: one number, converted to the compute type.
template <class S>
struct Numbers {
  using Storage = S;
  using T = compute_t<S>;
  using V = vector_t<S>;
  static constexpr int depth = 1, width = lanes<V>;  // elements per lane; per vector
  static TG_INLINE V read(const S* p) { return load(p); }
  static TG_INLINE V read_some(const S* p, int n) { return load_partial(p, n); }
  static TG_INLINE V broadcast(const T* p) { return splat<V>(*p); }
  static TG_INLINE V add_product(V a, V b, V sum) { return fma(a, b, sum); }
};

// Elements along k that a lane processes at a time: two adjacent bf16 numbers (has_pairs).
struct Pairs {
  using Storage = bfloat16;
  using T = float;
  using V = F32;
  static constexpr int depth = 2, width = 2 * lanes<F32>;
  static TG_INLINE F32 read(const bfloat16* p) {
    F32 v;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
  }
  static TG_INLINE F32 read_some(const bfloat16* p, int n) {
    bfloat16 all[width] = {};
    for (int i = 0; i < n; ++i) all[i] = p[i];
    return read(all);
  }
  static TG_INLINE F32 broadcast(const float* p) {  // copies the bits as an integer
    std::uint32_t bits;
    __builtin_memcpy(&bits, p, sizeof bits);
    return bits_as<F32>(splat<U32>(bits));
  }
  // sum + a.first·b.first + a.second·b.second in each lane.
  static TG_INLINE F32 add_product([[maybe_unused]] F32 a, [[maybe_unused]] F32 b, F32 sum) {
#if TG_VECTOR_BYTES == 64
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#endif
    return sum;
  }
};

// The register tile: rows × (vectors · lanes) of C. It has 14·2 accumulators if there are 32 registers. If
// there are 16, it has 6·2 accumulators, or 4·2 with 128-bit vectors.
template <class T>
struct Tile {
  static constexpr int rows = TG_VECTOR_BYTES == 64 ? 14 : TG_VECTOR_BYTES == 32 ? 6 : 4;
  static constexpr int width = lanes<vector_t<T>>;
  static constexpr int columns = 2 * width;
};

// Whether the micro-kernel prefetches elements of direct operands. If each step of p skips a long row, the
// hardware prefetcher does not detect the accesses. On AVX2, the twelve FMAs of a tile take as long as the
// instruction fetch, so prefetches cost more than they save.
inline constexpr bool asks_ahead = TG_VECTOR_BYTES != 32;

// Splits m rows into the smallest number of chunks of at most Tile::rows. Sizes are as equal as possible.
// Chunk i is [start(i), start(i + 1)).
template <class T>
struct RowChunks {
  explicit RowChunks(i64 rows) : m(rows), count((rows + Tile<T>::rows - 1) / Tile<T>::rows) {}
  i64 start(i64 chunk) const { return chunk * m / count; }
  const i64 m, count;
};

// The layout of an operand of `multiply`.
//   direct  A(i, p) = a[i·row + p·col] for any strides, B(p, j) = b[p·ldb + j]
//   packed  A: [k][rows of the chunk] for each row chunk, where row i begins at element i·k
//           B: [k][columns] for each Tile::columns, the last one padded, where column j begins at element j·k
//   padded  B only: direct, and may be read (not used) up to a multiple of the vector
enum class Form { direct, packed, padded };

template <class T>
struct Left {  // A[m×k]
  const T* data;
  i64 row, col;
  Form form = Form::direct;
};
template <class T>
struct Right {  // B[k×n]
  const T* data;
  i64 ld;
  Form form = Form::direct;
};

// C[m×n] = A[m×k]·B[k×n] + D with C(i, j) = c[i·ldc + j] and D(i, j) = d[i·ldd + j]. D may be C, a row with
// ldd = 0, or null. If D is C, the GEMM accumulates. In every tile, an element starts at 0, accumulates FMAs
// in the order p = 0 … k-1 and then adds D. If k = 0, the result is D or zeros. T is float or double.
template <class T>
void multiply(i64 m, i64 n, i64 k, Left<T> a, Right<T> b, T* c, i64 ldc, const T* d, i64 ldd);

// Multiplies matrices with a pair of bf16 in each f32: element (i, p) of A contains A(i, 2p) and A(i, 2p +
// 1), and element (p, j) of B contains B(2p, j) and B(2p + 1, j). k counts pairs, and both operands are
// packed. Requires a processor with avx512_bf16, and has_pairs.
void multiply_pairs(i64 m, i64 n, i64 k, Left<float> a, Right<float> b, float* c, i64 ldc, const float* d,
                    i64 ldd);

}  // namespace tg::cpu::TG_ISA
