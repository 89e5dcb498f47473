// Sums of few terms each, such as that of a position's gradient over the rows of a small batch: a thread has
// some of the sums, and adds up their terms in order. The kernels for other sums divide each among threads.
#pragma once

#include <memory>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// Whether a step is the sum, over some axes, of at most 32 terms each and 2²⁰ in all, of floating-point
// numbers.
bool is_sum_of_few(const Step& step);

// An operand of a reduction without the axes that are reduced; of the result, without those of size 1 in
// their place.
Arg without_reduced(const Step& reduction, const Arg& operand);

}  // namespace tg::cuda
