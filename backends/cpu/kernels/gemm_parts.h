// Shared by the GEMM implementations: the conditions that select them, the offsets of elements, and the write
// of a finished block.
#pragma once

#include <type_traits>

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/pack.h"

namespace tg::cpu::TG_ISA {

// An implementation of gemm. Its functions correspond to gemm_scratch, gemm and gemm_choice.
struct GemmCase {
  Scratch (*scratch)(const Gemm& g, int threads);
  void (*run)(const Gemm& g, Worker& worker);
  void (*choice)(const Gemm& g, int threads, char* text, std::size_t size);
};

// Whether a GEMM is computed as dot products of vectors, without a transposition. Both operands must be
// contiguous along k, as in x times a transposed weight. Dot products are used for few rows or columns. With
// Gemm::batch_invariant, they are used for any number of rows, so that few and many rows have the same
// summation order. The condition then does not depend on m.
bool is_dots(const Gemm& g);
extern const GemmCase gemm_dots;

// Whether a GEMM of a few rows reads and converts B in place instead of packing it. B is a 16-bit matrix that
// is contiguous along n, such as kv_b_proj in absorbed attention. Results are bitwise identical to the packed
// GEMM, which is used for more rows.
bool is_rows(const Gemm& g);
extern const GemmCase gemm_rows;

// Whether a GEMM multiplies bf16 pairs, and whether it multiplies bf16 on AMX tiles.
inline bool is_pairs(const Gemm& g) {
  return has_pairs && g.type == DType::bf16 && g.bf16 == Bf16Unit::pairs;
}
inline bool is_for_tiles([[maybe_unused]] const Gemm& g) {
#if defined(TG_BF16_TILES)
  return g.type == DType::bf16 && g.bf16 == Bf16Unit::tiles && g.k > 0;
#else
  return false;
#endif
}

// Returns the number of consecutive chunks into which k is divided. The sum of an element of C is split in
// the same way.
inline i64 k_chunks(i64 k) {
  // A chunk of 14 rows has 21 KiB in L1. A panel of B has 48 KiB and passes from L2 through L1.
  constexpr i64 k_block = piece_size(384, 32);
  return at_least(1, ceil_div(k, k_block));
}

inline i64 batches_of(const Gemm& g) {
  i64 n = 1;
  for (int i = 0; i < g.batch_rank; ++i) n *= g.batch[i];
  return n;
}

// C^T = B^T·A^T.
inline Gemm swapped(Gemm g) {
  swap(g.m, g.n);
  swap(g.a, g.b);
  for (Gemm::Matrix* x : {&g.a, &g.b, &g.c, &g.d}) swap(x->row, x->col);
  return g;
}

// Transposes the GEMM if C has unit row stride. C^T then has unit column stride.
inline Gemm normalised(const Gemm& g) {
  return g.c.col == 1 || g.c.row != 1 ? g : swapped(g);
}

inline i64 aligned(i64 bytes) {
  return (bytes + 63) / 64 * 64;
}

// Returns the offset of a batch item in an operand.
inline i64 batch_offset(const Gemm& g, const Gemm::Matrix& x, i64 item) {
  i64 offset = 0;
  for (int i = g.batch_rank - 1; i >= 0; --i) {
    offset += item % g.batch[i] * x.batch_strides[i];
    item /= g.batch[i];
  }
  return offset;
}

template <class T, class S>
const S* element(const Gemm& g, const Gemm::Matrix& x, i64 item, i64 i, i64 j) {
  return static_cast<const S*>(x.data) + batch_offset(g, x, item) + i * x.row + j * x.col;
}

// C[i0:i1, j0:j1] = own + D, rounded to the storage type.
template <class T>
void write_out(const Gemm& g, i64 item, i64 i0, i64 i1, i64 j0, i64 j1, const T* own, i64 ld) {
  with_storage<T>(g.out_type, [&]<class S>(const S*) {
    constexpr int W = lanes<vector_t<S>>;
    S* c = const_cast<S*>(element<T, S>(g, g.c, item, i0, j0));
    const S* d = g.d.data ? element<T, S>(g, g.d, item, i0, j0) : nullptr;
    for (i64 i = i0; i < i1; ++i, own += ld, c += g.c.row, d += d ? g.d.row : 0) {
      i64 j = 0;
      if (g.c.col == 1 && (!d || g.d.col == 1)) {
        for (; j + W <= j1 - j0; j += W) store(c + j, d ? load(own + j) + load(d + j) : load(own + j));
      }
      for (; j < j1 - j0; ++j) {
        const T sum = d ? own[j] + static_cast<T>(d[j * g.d.col]) : own[j];
        c[j * g.c.col] = static_cast<S>(sum);
      }
    }
  });
}

}  // namespace tg::cpu::TG_ISA
