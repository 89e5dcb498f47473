// How Hopper's kernels divide their work.
#pragma once

#include <cuda.h>

#include <algorithm>

#include "backends/cuda/attention/options.h"
#include "backends/cuda/tile/accumulator.cuh"
#include "backends/cuda/tile/shared_sm90.cuh"

namespace tg::cuda::attention::forward_sm90 {

// d ≤ D, dv ≤ DV; `groups` warpgroups of 64 queries.
template <int D, int DV, int groups_>
struct Shape {
  static constexpr int groups = groups_, queries = 64 * groups, keys = D <= 192 ? 128 : 80,
                       threads = 128 * (1 + groups);
  // Of tiles of keys and of values; of the items' queries; of items: as many as the shared memory has room
  // for.
  static constexpr int stages = D <= 64 ? 3 : 2, query_stages = D <= 128 ? 2 : 1, items = D <= 192 ? 4 : 2;
  static constexpr int producer_registers = groups == 3 ? 32 : 40,
                       consumer_registers = groups == 3 ? 160 : 232;
  using Q = tile::SwizzledTile<64, D>;
  using K = tile::SwizzledTile<keys, D>;
  using V = tile::SwizzledTile<keys, DV>;
};

inline double rows_of(int length, int block) {
  return double((length + block - 1) / block) * block;
}
// The head sizes that kernels are compiled for, and the warpgroups.
template <class F>
auto with_shape(const AttentionCall& x, F&& f) {
  const int size = x.dv > 128 ? 256 : std::max(x.d, x.dv);
  return with_constant<64, 96, 128, 192, 256>(size, [&](auto d) {
    constexpr int dv = d == 192 ? 128 : int(d);
    // Three warpgroups where their sums leave room, unless too many of their rows were beyond L.
    if constexpr (d == 64)
      if (rows_of(x.L, 192) <= rows_of(x.L, 128) * 1.1) return f(d, constant<dv>(), constant<3>());
    return f(d, constant<dv>(), constant<2>());
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
