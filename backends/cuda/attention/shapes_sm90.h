// Tile shapes of Hopper's kernels.
#pragma once

#include <cuda.h>

#include <algorithm>

#include "backends/cuda/attention/shapes.h"
#include "backends/cuda/tile/accumulator.cuh"
#include "backends/cuda/tile/shared_sm90.cuh"

namespace tg::cuda::attention::forward_sm90 {

// The shape for d ≤ D and dv ≤ DV. `groups` consumer warpgroups have 64 queries each.
// - With more than two warpgroups, each starts and ends at its own keys. Two warpgroups process the same
//   tiles. For two warpgroups, separate key ranges would save less time. At d 128 they would cost 2 to 8 %.
// - With takes_turns, the warpgroups alternate between GEMMs and softmax (ping-pong scheduling). If queries
//   see few keys, the start and end of an item dominate, and takes_turns is not set. More warpgroups with
//   smaller tiles and more stages then use each other's idle time.
// - Heads of at most 64 queries use one warpgroup per block and several blocks per multiprocessor. The blocks
//   also use each other's idle time.
template <int D_, int DV_, int groups_, bool takes_turns_ = true, Numbers numbers = of_16_bits>
struct TileShape {
  static constexpr bool takes_turns = takes_turns_, own_keys = groups_ > 2, split = numbers != of_16_bits;
  static constexpr int D = D_, DV = DV_, terms = numbers == two_f16 ? 2 : 1;
  static constexpr bool divided = groups_ == 1, may_be_whole = true;  // see Divided
  // The first GEMM of the next item starts before the results of this item are stored. At d 256, or with two
  // f16 values per f32 element, no registers are left for this.
  static constexpr bool begins_early = !own_keys && D <= 192 && terms == 1;
  static constexpr bool by_scores = false, values_are_keys = false;  // by_scores: parts store c as a score
  static constexpr int groups = groups_, queries = 64 * groups, threads = 128 * (1 + groups),
                       blocks = groups > 1 ? 1 : short_blocks(D),  // of a multiprocessor
      keys = !takes_turns || terms == 2 ? 64
             : D <= 192                 ? 128
                                        : 80;
  // Number of pipeline stages for key and value tiles, and for the queries of items. As many are used as fit
  // in shared memory.
  static constexpr int stages = groups == 1    ? (D <= 64 ? 3 : 2)
                                : !takes_turns ? 8
                                : D <= 64      ? 3
                                               : 2,
                       query_stages = terms * D <= 128 ? 2 : 1;
  // Number of items that a block fetches ahead. If it were larger, other blocks would be idle at the end.
  // Preparing an item may take as long as computing an item of at most 64 queries.
  static constexpr int items = groups == 1 ? 3 : 2;
  // Whether O is stored through the tile of the item's queries. The queries of the next item must not need
  // that tile immediately.
  static constexpr bool stores_boxes = query_stages > 1 && !divided && !split;
  // Registers per thread after setmaxnreg. The sum over all warps must not exceed the number of registers at
  // launch. At launch, each thread has an equal share of the multiprocessor's 65,536 registers, rounded down
  // to a multiple of 8.
  static constexpr int producer_registers = groups == 2 ? 40 : 32,
                       at_launch = 65536 / threads / blocks / 8 * 8,
                       consumer_registers = groups == 1   ? 2 * at_launch - producer_registers
                                            : groups == 2 ? 232
                                            : groups == 3 ? 160
                                                          : 112;
  static_assert(128 * (producer_registers + groups * consumer_registers) <= at_launch * threads);
  // Returns which 64 queries of its nth item a warpgroup computes. With a mask, some groups of queries see
  // more keys than others. Without takes_turns the assignment therefore rotates from item to item.
  static TG_HOST_DEVICE int group(int warpgroup, unsigned n) {
    return takes_turns ? warpgroup : static_cast<int>((warpgroup + n) % groups);
  }
  using Q = tile::SwizzledTile<64, terms * D>;
  using K = tile::SwizzledTile<keys, terms * D>;
  using V = tile::SwizzledTile<keys, terms * DV>;
};

// A shape for kernels that support split keys, query heads as rows of one head, and any scores. Kernels
// without this support are 1 to 2 % faster at d 128.
template <class TileShape>
struct Divided : TileShape {
  static constexpr bool divided = true, may_be_whole = false, stores_boxes = false;
};

// Calls f with the TileShape for a 16-bit call.
auto with_shape(const AttentionCall& x, auto&& f) {
  const int size = x.dv > 128 ? 256 : std::max(x.d, x.dv);
  return with_constant<64, 96, 128, 192, 256>(size, [&](auto d) {
    if constexpr (d <= 128)
      if (x.L <= 64) return f(TileShape<d, d, 1, false>());
    if constexpr (d == 64)
      return x.T < few_keys ? f(TileShape<64, 64, 4, false>()) : f(TileShape<64, 64, 3>());
    else
      return f(TileShape<d, values_beside(d), 2>());
  });
}
// Calls f with the TileShape for an f32 call.
auto with_f32_shape(const AttentionCall& x, auto&& f) {
  const bool narrow = x.d <= 64 && x.dv <= 64;
  if (has_two_f16(x))
    return narrow ? f(TileShape<64, 64, 3, true, two_f16>()) : f(TileShape<128, 128, 2, true, two_f16>());
  if (!narrow) return f(TileShape<128, 128, 2, true, one_f16>());
  return x.T < few_keys ? f(TileShape<64, 64, 4, false, one_f16>())
                        : f(TileShape<64, 64, 3, true, one_f16>());
}

}  // namespace tg::cuda::attention::forward_sm90

namespace tg::cuda::attention::forward_576_sm90 {

// The shape for d ≤ 576 and dv ≤ 512. One warpgroup computes scores. Two warpgroups accumulate P·V, each for
// 256 columns.
template <bool values_are_keys_>
struct TileShape {
  static constexpr bool values_are_keys = values_are_keys_, divided = true, may_be_whole = true,
                        split = false, stores_boxes = false, by_scores = true;
  static constexpr int groups = 1, queries = 64, keys = 64, threads = 512,
                       blocks = 1;  // groups of 64 queries
  static constexpr int k_stages = values_are_keys ? 2 : 1, items = 2, thirds = 3;
  static constexpr int producer_registers = 32, adder_registers = 176;  // scorer: as at launch
  using Q = tile::SwizzledTile<queries, 576>;
  using K = tile::SwizzledTile<keys, 576>;
  using V = tile::SwizzledTile<keys, 512>;
};

}  // namespace tg::cuda::attention::forward_576_sm90

namespace tg::cuda::attention::backward_sm90 {

// One kernel supports all head sizes d ≤ D and dv ≤ DV. Each warpgroup has half of the keys. It computes z_Q
// for half of the queries, or for half of the columns if tiles have 64 queries. Because wgmma has M = 64, z_Q
// is computed transposed unless tiles have a multiple of 64 queries.
//
// Wide heads use clusters of two blocks with 64 keys each. Each warpgroup then has all keys of its block, and
// computes z_Q for a quarter of the cluster's columns.
//
// If last_stores, the last block that adds to a tile's z_Q also stores it.
template <int D_, int DV_, bool last_stores_, Numbers numbers = of_16_bits>
struct TileShape {
  static constexpr int D = D_, DV = DV_, terms = numbers == two_f16 ? 2 : 1;
  static constexpr bool wide = D > 192, last_stores = last_stores_, split = numbers != of_16_bits;
  static constexpr int blocks = backward_blocks(D);  // per cluster
  static constexpr int keys = wide ? 64 : 128, queries = backward_queries(D, last_stores, terms), stages = 2,
                       threads = 384,
                       z_a_stages = wide      ? 1
                                    : D > 128 ? 3
                                              : 2;
  static constexpr int producer_registers = 24, consumer_registers = 240;
  // Number of a head's blocks that run concurrently in deterministic mode with a mask. It is an eighth of the
  // blocks, within measured limits.
  static int together_in_order(int all) {
    constexpr int few = D <= 64 ? 1 : 2, most = D <= 64 ? 6 : D == 192 ? 4 : 8;
    return std::clamp(all / 8, wide ? 4 : std::clamp(all / 4, few, few + 1), most);
  }
  static constexpr bool transposes = !wide && (queries % 64 != 0 || terms == 2),
                        by_columns = D == 128 && !transposes;
  // Number of 8-query groups whose ξ is prefetched while the previous tile is processed. It is as large as
  // registers allow.
  template <Options options>
  static constexpr int parts_ahead = D <= 64 && options == none ? 16 : 3;
  using K = tile::SwizzledTile<keys, terms * D>;
  using V = tile::SwizzledTile<keys, terms * DV>;
  using Q = tile::SwizzledTile<queries, terms * D>;
  using ZO = tile::SwizzledTile<queries, terms * DV>;
  using ZA = tile::SwizzledTile<queries, terms * keys>;
  // Data of the other block in the cluster: the columns of K that this block multiplies, and z_A.
  using OthersK = tile::SwizzledTile<keys, D / 2>;
  static constexpr int others_bytes = wide ? OthersK::bytes + ZA::bytes : 0;
  // Layout of a tile's z_Q: the number of accumulators, the offset from the first warpgroup's accumulators to
  // the second's, and the number of parts.
  static constexpr int sums = queries * D, sums_between = transposes || wide ? 64 * queries : sums / 2,
                       parts = sums / sums_between;
  // Number of rows that a warp has in one part of z_Q, or in one part of its transpose.
  using ZQ = tile::Accumulator<16, transposes ? queries : wide ? D / 4 : by_columns ? D / 2 : D>;
};

// Kernel parameters that the host computes for a call.
struct Plan {
  CUtensorMap q, k, v, z_o;
  int group, tiles;   // query heads per key head; query tiles per head
  float factor, cap;  // as in Score
  float scale;        // of z_K
  bool nondeterministic;
  const Powers* powers;  // of split operands
};

}  // namespace tg::cuda::attention::backward_sm90
