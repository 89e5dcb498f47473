// The register-tiled micro-kernel under gemm and attention: a tile of C stays in registers over the whole k
// loop, elements of A are broadcast from wherever their strides say, rows of B are read as vectors.
#pragma once

#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

// The units for bf16 that this instruction set may use if the processor has them. It is compiled without
// their instructions, which are written in assembly.
#if TG_VECTOR_BYTES == 64 && defined(__GNUC__) && !defined(__clang__)
inline constexpr bool has_pairs = true;
#if defined(__linux__)
#define TG_BF16_TILES
#endif
#else
inline constexpr bool has_pairs = false;
#endif

// What a lane takes along k at a time: a number, converted to the compute type.
template <class S>
struct Numbers {
  using Storage = S;
  using T = compute_t<S>;
  using V = vector_t<S>;
  static constexpr int depth = 1, width = lanes<V>;  // elements of a lane, of a vector
  static TG_INLINE V read(const S* p) { return load(p); }
  static TG_INLINE V read_some(const S* p, int n) { return load_partial(p, n); }
  static TG_INLINE V broadcast(const T* p) { return splat<V>(*p); }
  static TG_INLINE V add_product(V a, V b, V sum) { return fma(a, b, sum); }
};

// Or two neighbours, which are bf16 (has_pairs).
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
  static TG_INLINE F32 broadcast(const float* p) {  // moved as the integer it is stored as
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

// The register tile: rows × (vectors · lanes) of C. 14·2 accumulators of 32 registers, 6·2 (4·2) of 16.
template <class T>
struct Tile {
  static constexpr int rows = TG_VECTOR_BYTES == 64 ? 14 : TG_VECTOR_BYTES == 32 ? 6 : 4;
  static constexpr int width = lanes<vector_t<T>>;
  static constexpr int columns = 2 * width;
};

// Whether the micro-kernel asks for elements of direct operands ahead of their use: where p steps over long
// rows, the hardware does not see them coming. The twelve multiply-adds of an AVX2 tile take as long as
// reading their instructions, so that there the requests cost more than they save.
inline constexpr bool asks_ahead = TG_VECTOR_BYTES != 32;

// m rows split into the fewest chunks of at most Tile::rows, as equal as can be: chunk i is [start(i),
// start(i + 1)).
template <class T>
struct RowChunks {
  explicit RowChunks(i64 rows) : m(rows), count((rows + Tile<T>::rows - 1) / Tile<T>::rows) {}
  i64 start(i64 chunk) const { return chunk * m / count; }
  const i64 m, count;
};

// How an operand of `multiply` lies in memory.
//   direct  A(i, p) = a[i·row + p·col] for any strides;  B(p, j) = b[p·ldb + j]
//   packed  A: for each row chunk in turn [k][rows of the chunk];  B: for each Tile::columns in turn
//   [k][columns],
//           the last one padded: j·k elements lie before column j, i·k before row i
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

// C[m×n] = A[m×k]·B[k×n] + D, C(i, j) = c[i·ldc + j], D(i, j) = d[i·ldd + j]: D may be C (accumulates), a row
// with ldd = 0, or absent (null). Each element is one chain of multiply-adds over p = 0 … k-1 from 0, then D,
// whatever tile it falls in; k = 0 gives D or zeros. T: float or double.
template <class T>
void multiply(i64 m, i64 n, i64 k, Left<T> a, Right<T> b, T* c, i64 ldc, const T* d, i64 ldd);

// The same with pairs of bf16 in each f32 place: element (i, p) of A is A(i, 2p), A(i, 2p + 1), and so for B;
// k counts pairs; both operands packed. Only where the processor has avx512_bf16, and only with has_pairs.
void multiply_pairs(i64 m, i64 n, i64 k, Left<float> a, Right<float> b, float* c, i64 ldc, const float* d,
                    i64 ldd);

}  // namespace tg::cpu::TG_ISA
