// The register-tiled micro-kernel under gemm and attention: a tile of C stays in registers over the whole k
// loop, elements of A are broadcast from wherever their strides say, rows of B are read as vectors.
#pragma once

#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

// The register tile: rows × (vectors · lanes) of C. 14·2 accumulators of 32 registers, 6·2 (4·2) of 16.
template <class T>
struct Tile {
  static constexpr int rows = TG_VECTOR_BYTES == 64 ? 14 : TG_VECTOR_BYTES == 32 ? 6 : 4;
  static constexpr int width = lanes<vector_t<T>>;
  static constexpr int columns = 2 * width;
};

// m rows split into the fewest chunks of at most Tile::rows, as equal as can be: chunk i is [start(i),
// start(i + 1)).
template <class T>
struct RowChunks {
  explicit RowChunks(i64 m) : m(m), count((m + Tile<T>::rows - 1) / Tile<T>::rows) {}
  i64 start(i64 chunk) const { return chunk * m / count; }
  const i64 m, count;
};

// C[m×n] = A[m×k]·B[k×n], or C += A·B with `accumulate`. A(i, p) = a[i·a_row + p·a_col]; B(p, j) = b[p·ldb +
// j]; C(i, j) = c[i·ldc + j]. Each element is one chain of multiply-adds over p in order from 0, whatever
// tile it falls in. k = 0 gives zeros. T: float or double. With `padded`, B may be read (not used) up to a
// multiple of the vector.
template <class T>
void multiply(i64 m, i64 n, i64 k, const T* a, i64 a_row, i64 a_col, const T* b, i64 ldb, T* c, i64 ldc,
              bool accumulate, bool padded = false);

}  // namespace tg::cpu::TG_ISA
