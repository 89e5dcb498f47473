// How Hopper's kernels divide their work.
#pragma once

#include <cuda.h>

#include "backends/cuda/attention/options.h"
#include "backends/cuda/tile/accumulator.cuh"
#include "backends/cuda/tile/shared_sm90.cuh"

namespace tg::cuda::attention::forward_sm90 {

// d ≤ D, dv ≤ DV. Three warpgroups where their sums leave room, else two.
template <int D, int DV>
struct Shape {
  static constexpr int groups = D <= 64 ? 3 : 2, queries = 64 * groups, keys = D <= 192 ? 128 : 80,
                       stages = 2, threads = 128 * (1 + groups);
  static constexpr int producer_registers = groups == 3 ? 32 : 40,
                       consumer_registers = groups == 3 ? 160 : 232;
  using Q = tile::SwizzledTile<64, D>;
  using K = tile::SwizzledTile<keys, D>;
  using V = tile::SwizzledTile<keys, DV>;
};

// The head sizes that kernels are compiled for.
template <class F>
auto with_shape(const AttentionCall& x, F&& f) {
  const int size = x.dv <= 128 ? x.d : 256;
  return with_constant<64, 96, 128, 192, 256>(x.d > 64 || x.dv <= 64 ? size : 96, [&](auto d) {
    return f(d, constant<(d == 64 ? 64 : d == 256 ? 256 : 128)>());
  });
}

}  // namespace tg::cuda::attention::forward_sm90

namespace tg::cuda::attention::backward_sm90 {

// d ≤ D, dv ≤ D; tiles of `queries`. Wgmma has 64 rows: where a tile has not as many for each warpgroup, z_Q
// is computed transposed.
template <int D>
struct Shape {
  static constexpr int keys = 128, queries = D <= 64 ? 128 : 80, stages = 2, threads = 384;
  static constexpr int producer_registers = 24, consumer_registers = 240;
  static constexpr bool transposes = queries != 128;
  using K = tile::SwizzledTile<keys, D>;
  using Q = tile::SwizzledTile<queries, D>;
  using ZA = tile::SwizzledTile<queries, keys>;
  using ZQ =
      tile::Accumulator<16, transposes ? queries : D>;  // a warp's part of a tile's z_Q, or of its transpose
};

// What the host computes of a call.
struct Plan {
  CUtensorMap q, k, v, z_o;
  int group, tiles;     // query heads of a key head; tiles of queries of a head
  float factor, scale;  // of q·k, in units of log 2 and as it is
  bool free_order;
};

}  // namespace tg::cuda::attention::backward_sm90
