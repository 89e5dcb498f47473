// The ropes beside a call of attention that its kernel computes as well.
#pragma once

#include <memory>
#include <optional>

#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

// Of queries and keys before a forward, which also writes what they become, and of their gradients behind a
// backward. Results have the bits of kernels of their own.
struct Ropes {
  const float* table = nullptr;  // [rows, 2, pairs] of cosines and sines; null: there are none
  int rows = 0, pairs = 0;
  int lanes = 0;  // 2^lanes ≥ pairs/2
  bool interleaved = false, inverse = false;
  bool of_q = false, of_k = false;
  // What a forward reads in place of q and k, or a backward writes in place of z_q and z_k.
  AttentionCall::TensorView q, k;
};

// The same with the memory of the table.
struct RopesBeside {
  Ropes ropes;
  std::shared_ptr<const void> table;  // keeps theirs
};

// Those of a call whose kernels compute them: the steps before a forward, or behind a backward. Nothing if
// they cannot: positions are given, q and k turn in different ways, or results would overwrite what blocks
// still read.
std::optional<RopesBeside> ropes_beside(std::span<const Step> steps, const Call& call);

// Whether the kernel of a choice computes these ropes. Short heads: an even number of pairs. Hopper's
// backward rotates z_q and z_k where it stores them: heads of 64 that turn as a whole, in halves, as many
// keys as queries, without sequences, lengths and softcap.
bool takes_ropes(const Choice& c, const Ropes& ropes);

}  // namespace tg::cuda::attention
