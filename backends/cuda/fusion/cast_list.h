// Casts of many tensors in one kernel, such as those of a model's parameters to a half type: a launch takes
// longer than a small tensor.
#pragma once

#include <memory>
#include <span>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// How many of the steps, from the first on, one kernel can compute: casts from f32 to one half type, in one
// piece each, none of which reads what one before it writes, or the other way round. 0 or 1: no list.
std::size_t casts_together(std::span<const Step> steps);

}  // namespace tg::cuda
