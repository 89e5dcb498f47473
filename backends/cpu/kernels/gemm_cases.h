// The products that gemm() leaves to files of their own, where these apply: few rows or columns, few rows
// with a half matrix, and bf16 on AMX tiles.
#pragma once

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/simd.h"

#if TG_VECTOR_BYTES == 64 && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define TG_BF16_TILES
#endif

namespace tg::cpu::TG_ISA {

// Products whose operands both run along k in memory, as x times a transposed weight: dot products of
// vectors, nothing transposed. Of few rows or columns; with Gemm::rows_alone of any number of rows, so that
// few and many rows are added up in one order. Does not depend on m with rows_alone.
bool is_dots(const Gemm& g);

// As gemm_scratch, gemm and gemm_choice, where is_dots.
ScratchSize gemm_dots_scratch(const Gemm& g, int threads);
void gemm_dots(const Gemm& g, Worker& worker);
void gemm_dots_choice(const Gemm& g, int threads, char* text, std::size_t size);

// Products of a few rows with a half matrix that runs along n in memory, as absorbed attention's with
// kv_b_proj: the matrix is read and converted as it lies, instead of being packed first.
// The bits are those of the packed product, which takes more rows.
bool is_rows(const Gemm& g);

// As gemm_scratch, gemm and gemm_choice, where is_rows.
ScratchSize gemm_rows_scratch(const Gemm& g, int threads);
void gemm_rows(const Gemm& g, Worker& worker);
void gemm_rows_choice(const Gemm& g, int threads, char* text, std::size_t size);

#if defined(TG_BF16_TILES)
inline bool is_for_tiles(const Gemm& g) {
  return g.type == DType::bf16 && g.bf16 == Bf16Unit::tiles && g.k > 0;
}

// As gemm_scratch and gemm, for products on tiles whose C is not transposed.
ScratchSize gemm_tiles_scratch(const Gemm& g, int threads);
void gemm_tiles(const Gemm& g, Worker& worker);
#endif

}  // namespace tg::cpu::TG_ISA
