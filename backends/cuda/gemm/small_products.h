// Small products in 16 bits, several in one kernel if none of them needs another's result, such as the
// gradients of many weights: a launch takes longer than such a product.
#pragma once

#include <memory>
#include <span>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// Whether small_products.cu multiplies these matrices, and faster than cuBLASLt: one product in bf16 or f16
// on Hopper, with what is added to it or without, whose operands lie along rows or columns, of at most as
// many tiles as two for each multiprocessor and not too long a k; of 16 for each if only rows of the result
// begin at odd places, for which cuBLASLt has slow kernels. Not in programs of rows_alone, for k is cut into
// slices by its length, and not if the kernels of few rows (rows_gemm.h) have it, unless there are few tiles
// and n is no multiple of 8: for those they have long code.
bool is_small_product(const Call& call);

// Multiplies them, without a plan.
void multiply_small(const Stream& s, const Call& product);

}  // namespace tg::cuda
