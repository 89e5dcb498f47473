// Products whose operands both run along k in memory, as x times a transposed weight: dot products of
// vectors, nothing transposed. gemm() calls it where it applies.
#pragma once

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

// Of few rows or columns; with Gemm::rows_alone of any number of rows, so that few and many rows are added up
// in one order. Does not depend on m with rows_alone.
bool is_dots(const Gemm& g);

// As gemm_scratch, gemm and gemm_choice, where is_dots.
ScratchSize gemm_dots_scratch(const Gemm& g, int threads);
void gemm_dots(const Gemm& g, Worker& worker);
void gemm_dots_choice(const Gemm& g, int threads, char* text, std::size_t size);

}  // namespace tg::cpu::TG_ISA
