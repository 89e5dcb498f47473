// Products whose rows have the same bits alone as in any company (CompileOptions::rows_alone), and which read
// the right matrix once where rows are few.
#pragma once

#include <string>
#include <vector>

#include "backends/cuda/kernel.h"
#include "backends/cuda/written_memory.h"

namespace tg::cuda {

// What the kernel of a product knows of the program around it. It computes the sum before it and the function
// after it with the bits that steps of their own would leave. All of that is contiguous in the product's
// shape, except for `left` and `right`, which are broadcast to it.
struct RowsContext {
  enum Function { none, gelu, gelu_tanh };
  Function function = none;
  std::byte* result = nullptr;  // function(y), which may replace y
  std::vector<Arg> sum;         // empty, or left, right and left + right, the operand that is added to x·w
  WrittenMemory written;        // operands that lie elsewhere may be read before the step before has ended
};

// Whether rows_gemm computes a matmul. It depends on the dtype, n, k and how b lies, not on the number of
// rows or how a lies; multiply_strided takes the others, which keeps rows alone, too.
bool is_for_rows_gemm(const Call& call);

// Whether that takes less time than cuBLASLt's fastest algorithm, where any order of additions will do: of
// few rows in 16 bits on Hopper, whose weights lie along k (measured in docs/notes/h200-decoding.md).
bool is_faster_by_rows_gemm(const Call& call);

// Bytes of workspace: where a does not lie in pieces of 16 bytes, it is copied.
std::size_t rows_gemm_workspace(const Call& call);

// As multiply_strided. bf16 and f16 on tensor cores, f32 in plain multiply-adds; sums are f32.
void rows_gemm(const Stream& s, const Call& call, const RowsContext& context);

std::string rows_gemm_choice(const Call& call, const RowsContext& context);

}  // namespace tg::cuda
