// What cuBLASLt does with a product on its way to memory, in the place of a step of its own.
#pragma once

#include <memory>

#include "backends/cuda/kernel.h"

namespace tg::cuda {

// Whether `next` is gelu_tanh of all that the matmul step before it gives, and nothing else. cuBLASLt's GELU
// is that one, the tanh form; gelu, by erf, stays a pass of its own.
bool is_gelu_of(const Step& product, const Step& next);

// A plan for the product's kernel that does the next step's work as well, which writes to `gelu`. Null where
// cuBLASLt has no kernel for it or does not say how exact it is (f32, f64), and where one step would
// overwrite what the other still reads.
std::shared_ptr<const void> plan_with_gelu(const Call& product, const Arg& gelu);

}  // namespace tg::cuda
