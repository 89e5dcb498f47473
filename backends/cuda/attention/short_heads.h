// Attention of few heads with short sequences (short_heads_sm80.cu), which Hopper's kernels would take as
// well.
#pragma once

#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

// Whether a block each takes the heads of a call for Hopper with all their queries and keys, and all run at
// the same time: heads of bf16 or f16 to 64, of at most 64 queries and keys, each with keys of its own,
// without sinks, softcap and lengths. A call that asks for certain kernels has them.
bool takes_short_heads(const AttentionCall& x, const Gpu& gpu);

// Ropes that such a kernel computes as well, with the bits of kernels of their own: of queries and keys
// before a forward, which also writes what they become, and of their gradients behind a backward.
struct Ropes {
  const float* table = nullptr;  // [rows, 2, pairs] of cosines and sines; null: there are none
  int rows = 0, pairs = 0;       // an even number of pairs
  bool interleaved = false, inverse = false;
  bool of_q = false, of_k = false;
  AttentionCall::Operand q,
      k;  // what a forward reads in place of q and k, or a backward writes in place of z_q, z_k
};

void launch_short_forward(const Stream& s, const AttentionCall& x, const Ropes& ropes);
void launch_short_backward(const Stream& s, const AttentionCall& x, const Ropes& ropes);  // with u

}  // namespace tg::cuda::attention
