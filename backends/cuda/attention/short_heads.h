// Attention of few heads with short sequences (short_heads_sm80.cu), which Hopper's kernels would take as
// well.
#pragma once

#include "backends/cuda/attention/ropes.h"

namespace tg::cuda::attention {

// Whether a block each takes the heads of a call for Hopper with all their queries and keys, and all run at
// the same time: heads of bf16 or f16 to 64, of at most 64 queries and keys, each with keys of its own,
// without sinks, softcap and lengths. A call that asks for certain kernels has them.
bool takes_short_heads(const AttentionCall& x, const Gpu& gpu);

// With ropes of an even number of pairs; the backward with u.
void launch_short_forward(const Stream& s, const AttentionCall& x, const Ropes& ropes);
void launch_short_backward(const Stream& s, const AttentionCall& x, const Ropes& ropes);

}  // namespace tg::cuda::attention
