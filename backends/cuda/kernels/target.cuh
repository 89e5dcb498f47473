// What the kernels of linear_cross_entropy share: a row's class, h of a row, and the launch of the kernels in
// head_loss.cu, on Hopper without a pass over the logits: the product stores exp(l − c) in place of logits
// and adds up its rows (formulas: ops/linear_cross_entropy.cpp).
#pragma once

#include "backends/cuda/kernels/any.cuh"
#include "ops/cross_entropy.h"

namespace tg::cuda {

// Classes, i32 or i64, of rows.
struct Targets {
  const void* data;
  i64 step, ignore_index;
  bool wide;  // i64

  Targets(const Arg& a, i64 ignore_index)
      : data(a.data), step(a.layout.strides[0]), ignore_index(ignore_index), wide(a.dtype == DType::i64) {}
  // -1 if the row is ignored, or has no class of n: then a fault is recorded by one thread of the row.
  __device__ __forceinline__ i64 at(i64 row, i64 n, const Faults& faults, bool reports) const {
    const i64 t =
        wide ? static_cast<const i64*>(data)[row * step] : static_cast<const int*>(data)[row * step];
    if (t == ignore_index) return -1;
    if (t >= 0 && t < n) return t;
    if (reports) faults.check_index(t, n, row);
    return -1;
  }
};

// 1 + 2λξ, the factor of a row's probabilities; not 0, by which the target's 1 is divided.
template <class C>
__device__ __forceinline__ C row_factor(C log_sum, C z_loss) {
  const C h = 1 + 2 * z_loss * log_sum, least = static_cast<C>(least_row_factor);
  return h < least && h > -least ? least : h;
}

// The plan of head_loss.cu for a call of bf16, with x and w in rows of c numbers that are multiples of 16
// bytes, and V a multiple of 8; null for others. That does not depend on the number of rows, nor do the bits
// of a row.
PlanPtr plan_head_loss(const Call& call);

}  // namespace tg::cuda
