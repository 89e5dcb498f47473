// Sums over the blocks of a norm's gradient, z_w and z_b, which no step before the optimizer reads: what the
// kernels of several norms leave of them is added up by one kernel.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// Element i of an output: the sum of `parts` numbers, `stride` apart, from partial[i] on, in their order.
struct SumLeft {
  const float* partial;
  std::byte* to;
  DType type;
  std::int64_t step;  // of `to`
  int n, parts, stride;
};

// Adds up what the plans of norms' gradients leave (KernelPlan::sums_left), in one launch for 32 of them.
void add_up(const Stream& s, std::span<const SumLeft> sums);

}  // namespace tg::cuda
