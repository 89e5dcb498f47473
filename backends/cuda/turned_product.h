// TF32 products on Hopper of operands that do not lie along k. Its tensor cores read TF32 along k only, and
// cuBLASLt has half of its rate where both operands lie across: a copy of the smaller one that lies along k
// takes less time.
#pragma once

#include <memory>

#include "backends/cuda/kernel.h"

namespace tg::cuda {

// A plan of turned_product_kernel for a matmul's call: it copies one operand and multiplies. Null for other
// types, small products, batches, operands that lie along k, and where the product takes less time as they
// lie (that is measured once, and remembered as algorithms are).
std::shared_ptr<const void> plan_turned_product(const Call& product);

extern const Kernel turned_product_kernel;

}  // namespace tg::cuda
