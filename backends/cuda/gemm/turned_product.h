// Products of f32 whose operands lie the wrong way for the processor. Hopper's tensor cores read TF32 along k
// only, and cuBLASLt has half of its rate where both operands lie across; its kernels of exact f32 are the
// other way round, and slower where weights lie along k. A copy of the smaller operand that lies the right
// way may take less time.
#pragma once

#include <memory>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// A plan for a matmul's call: it copies one operand and multiplies. Null for other types, small products,
// batches, operands that are stored as the product reads them best, and products that take less time without
// the copy (that is measured once, and remembered as algorithms are).
PlanPtr plan_turned_product(const Call& product);

}  // namespace tg::cuda
