// The product of matrices with any strides, for the few cases that cuBLASLt does not support.
#pragma once

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// in: a [..., m, k], b [..., k, n], and d or nothing, broadcast to out [..., m, n] = a·b + d. f64, f32, bf16
// or f16, summed over k in order.
void multiply_strided(const Stream& s, const Call& call);

}  // namespace tg::cuda
