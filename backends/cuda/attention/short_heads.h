// Attention of few heads with short sequences (short_heads_sm80.cu), which Hopper's kernels would take as
// well.
#pragma once

#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

// Whether a block each takes the heads of a call for Hopper with all their queries and keys, and all run at
// the same time: heads of bf16 or f16 to 64, of at most 64 queries and keys, each with keys of its own,
// without sinks, softcap and lengths. A call that asks for certain kernels has them.
bool takes_short_heads(const AttentionCall& x, const Gpu& gpu);

Launch launch_short_forward, launch_short_backward;  // the backward with u

}  // namespace tg::cuda::attention
