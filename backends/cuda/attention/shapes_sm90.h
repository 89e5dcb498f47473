// How Hopper's kernels divide their work.
#pragma once

#include <cuda.h>

#include <algorithm>

#include "backends/cuda/attention/shapes.h"
#include "backends/cuda/tile/accumulator.cuh"
#include "backends/cuda/tile/shared_sm90.cuh"

namespace tg::cuda::attention::forward_sm90 {

// d ≤ D, dv ≤ DV; `groups` warpgroups of 64 queries. Of more than two, each begins and ends at its own keys
// (two go through the same tiles: it saves less and costs 2 to 8 % at d 128). They take turns to multiply; or
// not, where queries see so few keys that beginning and ending is what counts: then more of them, with
// smaller tiles and more stages, fill each other's gaps. A head of at most 64 queries has a block with one of
// them, and a multiprocessor has several blocks, which fill each other's gaps likewise.
template <int D_, int DV_, int groups_, bool takes_turns_ = true, Numbers numbers = of_16_bits>
struct TileShape {
  static constexpr bool takes_turns = takes_turns_, own_keys = groups_ > 2, split = numbers != of_16_bits;
  static constexpr int D = D_, DV = DV_, terms = numbers == two_terms ? 2 : 1;
  static constexpr bool divided = groups_ == 1, may_be_whole = true;  // see Divided
  // The first product of the next item starts before results are stored. At d 256, and with two terms, there
  // is no register for it.
  static constexpr bool begins_early = !own_keys && D <= 192 && terms == 1;
  static constexpr bool by_scores = false, values_are_keys = false;  // by_scores: how parts hold c
  static constexpr int groups = groups_, queries = 64 * groups, threads = 128 * (1 + groups),
                       blocks = groups > 1 ? 1 : short_blocks(D),  // of a multiprocessor
      keys = !takes_turns || terms == 2 ? 64
             : D <= 192                 ? 128
                                        : 80;
  // Of tiles of keys and of values, and of the items' queries: as many as the shared memory has room for.
  static constexpr int stages = groups == 1    ? (D <= 64 ? 3 : 2)
                                : !takes_turns ? 8
                                : D <= 64      ? 3
                                               : 2,
                       query_stages = terms * D <= 128 ? 2 : 1;
  // A block that takes items further ahead leaves none for others in the end. Preparing one may take as long
  // as one of at most 64 queries.
  static constexpr int items = groups == 1 ? 3 : 2;
  // O leaves through the tile of the item's queries, if that is not needed at once for those of the next.
  static constexpr bool stores_boxes = query_stages > 1 && !divided && !split;
  // Together no more than the blocks of a multiprocessor have at launch: of 65,536, a multiple of 8 for each
  // thread.
  static constexpr int producer_registers = groups == 2 ? 40 : 32,
                       at_launch = 65536 / threads / blocks / 8 * 8,
                       consumer_registers = groups == 1   ? 2 * at_launch - producer_registers
                                            : groups == 2 ? 232
                                            : groups == 3 ? 160
                                                          : 112;
  static_assert(128 * (producer_registers + groups * consumer_registers) <= at_launch * threads);
  // Which 64 queries of its nth item a warpgroup has. Where they take no turns these change from item to
  // item: under a mask some see more keys than others.
  static TG_HOST_DEVICE int group(int warpgroup, unsigned n) {
    return takes_turns ? warpgroup : static_cast<int>((warpgroup + n) % groups);
  }
  using Q = tile::SwizzledTile<64, terms * D>;
  using K = tile::SwizzledTile<keys, terms * D>;
  using V = tile::SwizzledTile<keys, terms * DV>;
};

// The same in a kernel that takes parts of the keys, queries of several heads as those of one, and any
// scores. One that does not is 1 to 2 % faster at d 128.
template <class TileShape>
struct Divided : TileShape {
  static constexpr bool divided = true, may_be_whole = false, stores_boxes = false;
};

// Calls f with the shape for a call.
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
// The same of f32.
auto with_f32_shape(const AttentionCall& x, auto&& f) {
  const bool narrow = x.d <= 64 && x.dv <= 64;
  if (is_of_two_terms(x))
    return narrow ? f(TileShape<64, 64, 3, true, two_terms>()) : f(TileShape<128, 128, 2, true, two_terms>());
  if (!narrow) return f(TileShape<128, 128, 2, true, one_term>());
  return x.T < few_keys ? f(TileShape<64, 64, 4, false, one_term>())
                        : f(TileShape<64, 64, 3, true, one_term>());
}

}  // namespace tg::cuda::attention::forward_sm90

namespace tg::cuda::attention::forward_576_sm90 {

// d ≤ 576, dv ≤ 512. One warpgroup for scores, two for sums, 256 columns each.
template <bool values_are_keys_>
struct TileShape {
  static constexpr bool values_are_keys = values_are_keys_, divided = true, may_be_whole = true,
                        split = false, stores_boxes = false, by_scores = true;
  static constexpr int groups = 1, queries = 64, keys = 64, threads = 512,
                       blocks = 1;  // groups of 64 queries
  static constexpr int k_stages = values_are_keys ? 2 : 1, items = 2, thirds = 3;
  static constexpr int producer_registers = 32, adder_registers = 176;  // the scorer's are those at launch
  using Q = tile::SwizzledTile<queries, 576>;
  using K = tile::SwizzledTile<keys, 576>;
  using V = tile::SwizzledTile<keys, 512>;
};

}  // namespace tg::cuda::attention::forward_576_sm90

namespace tg::cuda::attention::backward_sm90 {

// d ≤ D, dv ≤ DV. Each warpgroup has half of the keys and, of z_Q, half of the queries or, of 64 queries,
// half of the columns. As wgmma has 64 rows, z_Q is computed transposed if queries are not a multiple of 64.
// Of wide heads two blocks of a cluster have 64 keys each; each warpgroup has all of the block's keys, and a
// quarter of the columns of the cluster's z_Q. With last_stores, the last block to add to a tile's z_Q stores
// it.
template <int D_, int DV_, bool last_stores_, Numbers numbers = of_16_bits>
struct TileShape {
  static constexpr int D = D_, DV = DV_, terms = numbers == two_terms ? 2 : 1;
  static constexpr bool wide = D > 192, last_stores = last_stores_, split = numbers != of_16_bits;
  static constexpr int blocks = backward_blocks(D);  // of a cluster
  static constexpr int keys = wide ? 64 : 128, queries = backward_queries(D, last_stores, terms), stages = 2,
                       threads = 384,
                       z_a_stages = wide      ? 1
                                    : D > 128 ? 3
                                              : 2;
  static constexpr int producer_registers = 24, consumer_registers = 240;
  // In order under a mask, blocks of a head that run at a time: an eighth, within limits that were measured.
  static int together_in_order(int all) {
    constexpr int few = D <= 64 ? 1 : 2, most = D <= 64 ? 6 : D == 192 ? 4 : 8;
    return std::clamp(all / 8, wide ? 4 : std::clamp(all / 4, few, few + 1), most);
  }
  static constexpr bool transposes = !wide && (queries % 64 != 0 || terms == 2),
                        by_columns = D == 128 && !transposes;
  // Parts of 8 queries of a tile whose ξ is fetched while the tile before is worked on: as many as there are
  // registers for.
  template <Options options>
  static constexpr int parts_ahead = D <= 64 && options == none ? 16 : 3;
  using K = tile::SwizzledTile<keys, terms * D>;
  using V = tile::SwizzledTile<keys, terms * DV>;
  using Q = tile::SwizzledTile<queries, terms * D>;
  using ZO = tile::SwizzledTile<queries, terms * DV>;
  using ZA = tile::SwizzledTile<queries, terms * keys>;
  // Of the cluster's other block: the columns of K that this one multiplies, and z_A.
  using OthersK = tile::SwizzledTile<keys, D / 2>;
  static constexpr int others_bytes = wide ? OthersK::bytes + ZA::bytes : 0;
  // Of a tile's z_Q: all sums, how many are from those of the first warpgroup to those of the second, and the
  // parts that this makes.
  static constexpr int sums = queries * D, sums_between = transposes || wide ? 64 * queries : sums / 2,
                       parts = sums / sums_between;
  // A warp's rows of a part of z_Q, or of its transpose.
  using ZQ = tile::Accumulator<16, transposes ? queries : wide ? D / 4 : by_columns ? D / 2 : D>;
};

// What the host computes of a call.
struct Plan {
  CUtensorMap q, k, v, z_o;
  int group, tiles;   // query heads of a key head; tiles of queries of a head
  float factor, cap;  // as Score has them
  float scale;        // of z_K
  bool nondeterministic;
  const Powers* powers;  // of operands that are split
};

}  // namespace tg::cuda::attention::backward_sm90
