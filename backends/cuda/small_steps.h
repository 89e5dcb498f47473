// Small steps in one kernel of one block: a launch takes longer than a chain of pointwise ops on a few
// numbers, such as those between a loss and its gradient.
#pragma once

#include <memory>
#include <span>

#include "backends/cuda/kernel.h"

namespace tg::cuda {

// How many of the steps, from the first on, one block computes as fast as a kernel for each: chains, and sums
// to one number, of at most 4,096 numbers. One is a sum, or none. A sum is added in an order that depends on
// its operand alone, whatever is beside it, but not in that of the kernel for sums: `in_their_order`, there
// are none.
std::size_t small_steps_together(std::span<const Step> steps, bool in_their_order);

// A plan for such steps.
PlanPtr plan_small_steps(std::span<const Step> steps, const Gpu& gpu);

}  // namespace tg::cuda
