// RoPE: the parts that kernels share, namely a table of cosines and sines, and one launch for two RoPE steps.
#pragma once

#include <memory>

#include "backends/cuda/runtime/kernel.h"
#include "ops/rope.h"

namespace tg::cuda {

// Returns cos and sin of position·ω for each row of x [..., L, d] of a RoPE call with implicit positions. The
// table is in device memory, in x's compute type: [L, 2, pairs]. All calls in the process with equal
// parameters share it. Returns null if positions are given, or if the table would exceed 4 MiB. Each run then
// computes the values.
std::shared_ptr<const void> rope_table(const Call& rope);

// Whether `rope` computes the queries or keys of a flash_attn from its whole operand, and whether it rotates
// their gradient from a flash_attn_backward.
bool is_rope_for(const Step& rope, const Step& attention);
bool is_rope_of(const Step& attention, const Step& rope);

}  // namespace tg::cuda
