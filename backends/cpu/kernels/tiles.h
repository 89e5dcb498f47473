// The product of bf16 matrices on AMX tiles; gemm() calls it where it applies.
#pragma once

#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/simd.h"

#if TG_VECTOR_BYTES == 64 && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define TG_BF16_TILES

namespace tg::cpu::TG_ISA {

inline bool is_for_tiles(const Gemm& g) {
  return g.type == DType::bf16 && g.bf16 == Bf16Unit::tiles && g.k > 0;
}

// As gemm_scratch and gemm, for products on tiles whose C is not transposed.
ScratchSize gemm_tiles_scratch(const Gemm& g, int threads);
void gemm_tiles(const Gemm& g, Worker& worker);

}  // namespace tg::cpu::TG_ISA
#endif
