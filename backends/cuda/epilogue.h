// Epilogues: what cuBLASLt computes from a product before it writes it, instead of a separate step.
#pragma once

#include <memory>

#include "backends/cuda/kernel.h"

namespace tg::cuda {

// Whether `next` computes gelu_tanh of the whole result of the matmul step before it, and nothing else.
// cuBLASLt's GELU is the tanh form; gelu, by erf, remains a step of its own.
bool is_gelu_of(const Step& product, const Step& next);

// A plan for the product's kernel that also computes the next step, whose output is `gelu`. Null if cuBLASLt
// has no kernel for it or does not document its accuracy (f32, f64), if one step would overwrite what the
// other still reads, or where rows must have the same bits alone.
std::shared_ptr<const void> plan_with_gelu(const Call& product, const Arg& gelu);

}  // namespace tg::cuda
