// The parts of RoPE that several kernels share: a table of cosines and sines, and one launch for two RoPE
// steps.
#pragma once

#include <memory>

#include "backends/cuda/runtime/kernel.h"
#include "ops/rope.h"

namespace tg::cuda {

// Returns the table of cosines and sines of position·ω for the rows of x [..., L, d]. The RoPE call must have
// implicit positions. The table is in device memory, [L, 2, pairs], in the compute type of x. All calls in
// the process with equal parameters share it. If positions are given, or if the table would exceed 4 MiB,
// returns null, and each run computes the values.
std::shared_ptr<const void> rope_table(const Call& rope);

// is_rope_for() returns whether `rope` computes the queries or keys of a flash_attn from its whole operand.
// is_rope_of() returns whether `rope` rotates their gradient, the result of a flash_attn_backward.
bool is_rope_for(const Step& rope, const Step& attention);
bool is_rope_of(const Step& attention, const Step& rope);

}  // namespace tg::cuda
