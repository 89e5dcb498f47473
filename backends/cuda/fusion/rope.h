// rope and what kernels share of it: a table of cosines, and one launch for two of them.
#pragma once

#include <memory>

#include "backends/cuda/runtime/kernel.h"
#include "ops/rope.h"

namespace tg::cuda {

// cos and sin of position·ω for each row of x [..., L, d] of a call of rope whose positions are counted, in
// device memory and in x's compute type: [L, 2, pairs], made once for all calls of the process that have the
// same. Null if positions are given, or if it would have more than 4 MiB: then each run makes it.
std::shared_ptr<const void> rope_table(const Call& rope);

// Whether `rope` makes the queries or the keys of a flash_attn from all of its operand, and whether it
// rotates their gradient from a flash_attn_backward.
bool is_rope_for(const Step& rope, const Step& attention);
bool is_rope_of(const Step& attention, const Step& rope);

}  // namespace tg::cuda
