// Kernels of matrix products beside cuBLASLt's, and which of them computes a call: in is a [..., m, k],
// b [..., k, n], and d or nothing, broadcast to out [..., m, n] = a·b + d.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// The strides of an operand along the axes of the product, of which the last two have `rows` and `columns`
// numbers in it; 0 along an axis that is broadcast.
tg::Strides product_strides(const Arg& operand, const Shape& product, std::int64_t rows,
                            std::int64_t columns);

// ---- kernels/matmul_strided.cu: any strides, for the few cases that cuBLASLt does not support ----

// f64, f32, bf16 or f16, summed over k in order.
void multiply_strided(const Stream& s, const Call& call);

// ---- kernels/rows_gemm.cu: the bits of a row do not depend on the rest of the batch
// (CompileOptions::batch_invariant), and the right matrix is read once where rows are few ----

// Whether rows_gemm has the product's kernel: its rows must have the same bits alone, or it is faster.
bool is_product_of_rows(const Call& product);

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
// the function after it, with the bits that steps of their own would leave in a program of batch_invariant.
// All of that is contiguous in the product's shape, except for `left` and `right`, which are broadcast to it.
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

// ---- kernels/small_products.cu: small products in 16 bits, several in one kernel if none of them needs
// another's result, such as the gradients of many weights: a launch takes longer than such a product ----

// Whether small_products.cu multiplies these matrices, and faster than cuBLASLt: one product in bf16 or f16
// on Hopper, with what is added to it or without, whose operands lie along rows or columns, of at most as
// many tiles as two for each multiprocessor and not too long a k; of 16 for each if only rows of the result
// begin at odd places, for which cuBLASLt has slow kernels. Not in programs of batch_invariant, for k is cut
// into slices by its length, and not if the kernels of few rows (rows_gemm) have it, unless there are few
// tiles and n is no multiple of 8: for those they have long code.
bool is_small_product(const Call& call);

// Multiplies them, without a plan.
void multiply_small(const Stream& s, const Call& product);

// ---- kernels/ordered_product.cu: on Hopper, an element's additions are in the order of k, whatever the
// number of rows or columns and wherever k is cut ----

// Whether it computes a product of matrices, a [m, k], b [k, n] and d [m, n] or nothing, to out [m, n]: in
// bf16 or f16, operands along rows or columns in pieces of 16 bytes, d in f32 and out in the same or, without
// d, in the type of a, both along rows, n even. That does not depend on m, nor on where k is cut at multiples
// of ordered_product_step: bits are those of one product, if d is what the one before left.
bool is_for_ordered_product(const Call& product);

inline constexpr std::int64_t ordered_product_step = 64;

// Null for a product that it does not compute.
PlanPtr plan_ordered_product(const Call& product);

// ---- transposed_product.cpp: products of f32 whose operands lie the wrong way for the processor. Hopper's
// tensor cores read TF32 along k only, and cuBLASLt has half of its rate where both operands lie across; its
// kernels of exact f32 are the other way round, and slower where weights lie along k. A copy of the smaller
// operand that lies the right way may take less time. ----

// A plan for a matmul's call: it copies one operand and multiplies. Null for other types, small products,
// batches, operands that are stored as the product reads them best, and products that take less time without
// the copy (that is measured once, and remembered as algorithms are).
PlanPtr plan_transposed_product(const Call& product);

}  // namespace tg::cuda
