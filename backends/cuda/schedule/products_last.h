// Small products next to each other, right before the first of them is read: one kernel computes them
// (backends/cuda/gemm/small_products.h). So are the gradients of weights, which nothing reads before the
// optimizer. Models record each behind the gradient that it is made of.
#pragma once

#include <vector>

#include "core/compile/join.h"

namespace tg::cuda {

// Moves the small products in half types that are read behind the last of them, and read no parameter, which
// may change, to that place (LoweredStep::with_next). What they read is kept until then. Returns whether
// there are several.
bool products_last(const Graph& graph, std::vector<LoweredStep>& steps, const Joined& joined);

}  // namespace tg::cuda
