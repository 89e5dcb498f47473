// GEMM kernels in addition to cuBLASLt's, and the conditions that select them. The inputs are a [..., m, k],
// b [..., k, n] and optionally d. The output is out [..., m, n] = a·b + d, where d is broadcast to the shape
// of out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// Returns an operand's strides along the GEMM's axes. The operand has `rows` and `columns` elements along the
// last two axes. The stride is 0 along a broadcast axis.
tg::Strides product_strides(const Arg& operand, const Shape& product, std::int64_t rows,
                            std::int64_t columns);

// ---- gemm/matmul_strided.cu: any strides, for the few cases that cuBLASLt does not support ----

// Supports f64, f32, bf16 and f16. Sums over k in order.
void multiply_strided(const Stream& s, const Call& call);

// ---- gemm/rows_gemm.cu: GEMMs in which a row's result is bitwise independent of the other rows
// (CompileOptions::batch_invariant). If there are few rows, the right matrix is read only once. ----

// Whether rows_gemm computes the GEMM. This is the case if the program is batch-invariant or if rows_gemm is
// faster.
bool is_gemm_of_rows(const Call& product);

// The norm of the single row of a GEMM (formula: ops/norm.cpp). All vectors are [k], in the GEMM's dtype and
// contiguous. The statistics are f32.
struct RowNorm {
  const std::byte *x, *weight, *bias;  // weight, bias: null if there is none
  std::byte *y, *mean, *scale;         // null if no step reads them
  float part, eps;                     // part: 1/k
  bool centred;                        // layer_norm; otherwise rms_norm
  bool constant;                       // no step writes weight or bias
};

// Neighboring steps that a GEMM kernel also computes: the sum or norm before it, and the function after it.
// Results are bitwise identical to those of separate steps in a batch-invariant program. All tensors except
// `left` and `right` are contiguous and have the shape of the GEMM's result. `left` and `right` are broadcast
// to this shape.
struct RowsContext {
  Epilogue function = Epilogue::none;
  std::byte* result = nullptr;  // function(y), may replace y
  std::vector<Arg> sum;         // empty, or left, right and their sum, which is added to x·w
  std::optional<RowNorm> norm;  // of x
  WrittenMemory written;        // other memory may be read before the previous step has finished
};

// Whether rows_gemm can compute a matmul. This depends on the dtype, n, k and the layout of b. It does not
// depend on the number of rows or on the layout of a. multiply_strided computes all other cases, and is
// batch-invariant as well.
bool is_for_rows_gemm(const Call& call);

// Whether rows_gemm is faster than cuBLASLt's fastest algorithm when any summation order is allowed. This is
// the case for few rows in 16 bits on Hopper, if weights are contiguous along k (measured in
// docs/notes/h200-few-row-gemms.md).
bool is_faster_by_rows_gemm(const Call& call);

// Whether the kernel can also normalize x. There must be a single row of at most 2,048 16-bit elements, and
// weights must be contiguous along k. All blocks must be resident at the same time, because each of them
// normalizes the row.
bool normalises_row(const Call& call, const RowsContext& context);

// Bytes of workspace. If rows of a are not contiguous and aligned to 16 bytes, a is copied there.
std::size_t rows_gemm_workspace(const Call& call);

// Computes the same GEMM as multiply_strided. bf16 and f16 use tensor cores, and f32 uses FMAs. Sums are f32.
void rows_gemm(const Stream& s, const Call& call, const RowsContext& context);

std::string rows_gemm_choice(const Call& call, const RowsContext& context);

// ---- gemm/grouped_gemm.cu: small 16-bit GEMMs. A launch takes longer than such a GEMM. One launch therefore
// computes several independent GEMMs, such as the gradients of many weights. ----

// Whether grouped_gemm.cu can compute this GEMM faster than cuBLASLt. All of these conditions must hold:
// - It is a single GEMM in bf16 or f16 on Hopper, with or without an addend, and k ≤ 1,024.
// - Operands are contiguous along rows or columns.
// - It has at most two tiles per multiprocessor. If n is not a multiple of 8 and both operands consist of
//   aligned 16-byte pieces, the limit is 16 tiles, because cuBLASLt is slow for such results.
// - The program is not batch-invariant, because the kernel splits k by its length.
// - rows_gemm is not chosen for it. There is one exception: if there are few tiles and n is not a multiple of
//   8, grouped_gemm is used, because the rows_gemm code for such n is long.
bool is_grouped_gemm(const Call& call);

// Computes one such GEMM, without a plan.
void multiply_small(const Stream& s, const Call& product);

// ---- gemm/ordered_gemm.cu: GEMMs on Hopper in which each element is summed in the order of k. The sum does
// not depend on the number of rows and columns or on the positions where k is split. ----

// Whether this kernel can compute a GEMM of a [m, k], b [k, n] and an optional d [m, n] into out [m, n]. All
// of these conditions must hold:
// - a and b are bf16 or f16, contiguous along rows or columns, in aligned pieces of 16 bytes.
// - d is f32. out is f32 or, without d, has the dtype of a. Both are contiguous along rows, and n is even.
//
// The conditions do not depend on m or on the split positions. If k is split at multiples of
// ordered_gemm_step, and d is the result of the previous part, the sum is bitwise identical to the result of
// one GEMM.
bool is_for_ordered_gemm(const Call& product);

inline constexpr std::int64_t ordered_gemm_step = 64;

// Returns null if the kernel cannot compute the GEMM.
PlanPtr plan_ordered_gemm(const Call& product);

// ---- gemm/transposed_gemm.cpp: f32 GEMMs whose operand layouts are slow on the GPU. Hopper's tensor cores
// read TF32 only along k, and cuBLASLt runs at half its rate if neither operand is contiguous along k. Its
// exact f32 kernels, however, are slower if weights are contiguous along k. Copying the smaller operand into
// the favorable layout may take less time. ----

// Returns a plan for a matmul that copies one operand before it multiplies. Returns null for other dtypes,
// small or batched GEMMs, and operands already in the favorable layout. It also returns null if the GEMM is
// faster without the copy. This is measured once and cached like the choice of an algorithm.
PlanPtr plan_transposed_gemm(const Call& product);

}  // namespace tg::cuda
