// Products whose rows have the same bits alone as in any company (CompileOptions::rows_alone), and which read
// the right matrix once where rows are few.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/cuda/runtime/kernel.h"
#include "backends/cuda/runtime/written_memory.h"

namespace tg::cuda {

// The norm of the only row of a product (formula: ops/norm.cpp). All vectors are [k], in the product's dtype
// and contiguous; the statistics are f32.
struct RowNorm {
  const std::byte *x, *weight, *bias;  // weight, bias: null if there is none
  std::byte *y, *mean, *scale;         // null where nobody reads them
  float part, eps;                     // part: 1/k
  bool centred;                        // layer_norm, else rms_norm
  bool constant;                       // no step writes weight and bias
};

// What the kernel of a product knows of the program around it. It computes the sum or the norm before it, and
// the function after it, with the bits that steps of their own would leave in a program of rows_alone. All of
// that is contiguous in the product's shape, except for `left` and `right`, which are broadcast to it.
struct RowsContext {
  Epilogue function = Epilogue::none;
  std::byte* result = nullptr;  // function(y), which may replace y
  std::vector<Arg> sum;         // empty, or left, right and left + right, the operand that is added to x·w
  std::optional<RowNorm> norm;  // of x
  WrittenMemory written;        // operands that lie elsewhere may be read before the step before has ended
};

// Whether rows_gemm computes a matmul. It depends on the dtype, n, k and how b lies, not on the number of
// rows or how a lies; multiply_strided takes the others, which keeps rows alone, too.
bool is_for_rows_gemm(const Call& call);

// Whether that takes less time than cuBLASLt's fastest algorithm, where any order of additions will do: of
// few rows in 16 bits on Hopper, whose weights lie along k (measured in docs/notes/h200-decoding.md).
bool is_faster_by_rows_gemm(const Call& call);

// Whether its kernel can also normalise x: the only row, in 16 bits, of at most 2,048 numbers, weights along
// k, and no more blocks than run at the same time, for each of them normalises the row.
bool normalises_row(const Call& call, const RowsContext& context);

// Bytes of workspace: where a does not lie in pieces of 16 bytes, it is copied.
std::size_t rows_gemm_workspace(const Call& call);

// As multiply_strided. bf16 and f16 on tensor cores, f32 in plain multiply-adds; sums are f32.
void rows_gemm(const Stream& s, const Call& call, const RowsContext& context);

std::string rows_gemm_choice(const Call& call, const RowsContext& context);

}  // namespace tg::cuda
