// Products of a few rows with a half matrix that runs along n in memory, as absorbed attention's with
// kv_b_proj: the matrix is read and converted as it lies, instead of being packed first. gemm() calls it
// where it applies.
#pragma once

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

// The bits are those of the packed product, which takes more rows.
bool is_rows(const Gemm& g);

// As gemm_scratch, gemm and gemm_choice, where is_rows.
ScratchSize gemm_rows_scratch(const Gemm& g, int threads);
void gemm_rows(const Gemm& g, Worker& worker);
void gemm_rows_choice(const Gemm& g, int threads, char* text, std::size_t size);

}  // namespace tg::cpu::TG_ISA
