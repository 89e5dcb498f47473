// Sums of few terms each, such as that of a position's gradient over the rows of a small batch: a thread has
// some of the sums, and adds up their terms in order. The kernels for other sums divide each among threads.
#pragma once

#include <memory>

#include "backends/cuda/kernel.h"

namespace tg::cuda {

// Whether a step is the sum, over some axes, of at most 32 terms each and 2²⁰ in all, of floating-point
// numbers.
bool is_sum_of_few(const Step& step);

// A plan of sum_of_few_kernel for it.
std::shared_ptr<const void> plan_sum_of_few(const Step& sum, const Gpu& gpu);

extern const Kernel sum_of_few_kernel;

}  // namespace tg::cuda
