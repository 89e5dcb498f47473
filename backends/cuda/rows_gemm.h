// Products whose rows have the same bits alone as in any company (CompileOptions::rows_alone), and which read
// the right matrix once where rows are few.
#pragma once

#include <string>

#include "backends/cuda/kernel.h"

namespace tg::cuda {

// Whether rows_gemm computes a matmul. It depends on the dtype, n, k and how b lies, not on the number of
// rows or how a lies; multiply_strided takes the others, which keeps rows alone, too.
bool is_for_rows_gemm(const Call& call);

// Bytes of workspace: where a does not lie in pieces of 16 bytes, it is copied.
std::size_t rows_gemm_workspace(const Call& call);

// As multiply_strided. bf16 and f16 on tensor cores, f32 in plain multiply-adds; sums are f32.
void rows_gemm(const Stream& s, const Call& call);

std::string rows_gemm_choice(const Call& call);

}  // namespace tg::cuda
