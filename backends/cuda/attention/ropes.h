// RoPE ops next to an attention call that the attention kernel computes as well.
#pragma once

#include <memory>
#include <optional>

#include "backends/cuda/attention/kernels.h"

namespace tg::cuda::attention {

// RoPE of queries and keys before a forward, or of their gradients after a backward. The forward also stores
// the rotated q and k. Results are bitwise identical to separate RoPE kernels.
struct Ropes {
  const float* table = nullptr;  // [rows, 2, pairs] of cosines and sines; null: no RoPE
  int rows = 0, pairs = 0;
  int lanes = 0;  // 2^lanes ≥ pairs/2
  bool interleaved = false, inverse = false;
  bool of_q = false, of_k = false;
  // A forward reads these instead of q and k. A backward writes them instead of z_q and z_k.
  AttentionCall::TensorView q, k;
};

// Ropes and the ownership of their table.
struct FusedRopes {
  Ropes ropes;
  std::shared_ptr<const void> table;  // keeps the table alive
};

// RoPE ops that the kernel of `call` may compute. `steps` are the steps before a forward or after a backward.
// Empty if positions are given, if q and k have different rotations, or if results would overwrite memory
// that blocks still read.
std::optional<FusedRopes> fused_ropes(std::span<const Step> steps, const Call& call);

// Whether the chosen kernel computes these RoPE ops. The short-heads kernels need an even number of pairs.
// Hopper's backward rotates z_q and z_k when it stores them. It needs head size 64, full rotation of
// non-interleaved halves, and L = T. Packed sequences, lengths and a softcap are not supported.
bool computes_ropes(const Choice& c, const Ropes& ropes);

}  // namespace tg::cuda::attention
