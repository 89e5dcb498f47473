// Shared by the kernels of linear_cross_entropy: a row's class, h of a row, and the plan of head_loss.cu. On
// Hopper, head_loss.cu avoids a pass over the logits. Its GEMM stores exp(l − c) instead of logits, and sums
// the rows (formulas: ops/linear_cross_entropy.cpp).
#pragma once

#include "backends/cuda/kernels/any.cuh"
#include "ops/cross_entropy.h"

namespace tg::cuda {

// Classes of rows, i32 or i64.
struct Targets {
  const void* data;
  i64 step, ignore_index;
  bool wide;  // i64

  Targets(const Arg& a, i64 ignore_index)
      : data(a.data), step(a.layout.strides[0]), ignore_index(ignore_index), wide(a.dtype == DType::i64) {}
  // Returns the row's class. Returns -1 if the row is ignored or its class is not in 0 … n − 1. If the class
  // is out of range, one thread of the row records a fault.
  __device__ __forceinline__ i64 at(i64 row, i64 n, const Faults& faults, bool reports) const {
    const i64 t =
        wide ? static_cast<const i64*>(data)[row * step] : static_cast<const int*>(data)[row * step];
    if (t == ignore_index) return -1;
    if (t >= 0 && t < n) return t;
    if (reports) faults.check_index(t, n, row);
    return -1;
  }
};

// 1 + 2λξ, the factor of a row's probabilities. It is never 0, because the target's 1 is divided by it.
template <class C>
__device__ __forceinline__ C row_factor(C log_sum, C z_loss) {
  const C h = 1 + 2 * z_loss * log_sum, least = static_cast<C>(least_row_factor);
  return h < least && h > -least ? least : h;
}

// Returns the plan of head_loss.cu for a bf16 call if V is a multiple of 8 and the rows are multiples of 16
// bytes. Returns null for other calls. Neither this condition nor a row's result depends on the number of
// rows.
PlanPtr plan_head_loss(const Call& call);

}  // namespace tg::cuda
