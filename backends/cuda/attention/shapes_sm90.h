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
// smaller tiles and more stages, fill each other's gaps.
template <int D_, int DV_, int groups_, bool takes_turns_ = true, Numbers numbers = of_16_bits>
struct Shape {
  static constexpr bool takes_turns = takes_turns_, own_keys = groups_ > 2, split = numbers != of_16_bits;
  static constexpr int D = D_, DV = DV_, terms = numbers == two_terms ? 2 : 1;
  // The first product of the next item starts before results are stored. At d 256, and with two terms, there
  // is no register for it.
  static constexpr bool begins_early = !own_keys && D <= 192 && terms == 1;
  static constexpr int groups = groups_, queries = 64 * groups, threads = 128 * (1 + groups),
                       keys = !takes_turns || terms == 2 ? 64
                              : D <= 192                 ? 128
                                                         : 80;
  // Of tiles of keys and of values; of the items' queries; of items: as many as the shared memory has room
  // for.
  static constexpr int stages = !takes_turns ? 8
                                : D <= 64    ? 3
                                             : 2,
                       query_stages = terms * D <= 128 ? 2 : 1, items = D <= 192 ? 4 : 2;
  // Together no more than the block has at launch: of 65,536, a multiple of 8 for each thread.
  static constexpr int consumer_registers = groups == 2   ? 232
                                            : groups == 3 ? 160
                                                          : 112,
                       producer_registers = groups == 2 ? 40 : 32;
  static_assert(128 * (producer_registers + groups * consumer_registers) <=
                65536 / threads / 8 * 8 * threads);
  using Q = tile::SwizzledTile<64, terms * D>;
  using K = tile::SwizzledTile<keys, terms * D>;
  using V = tile::SwizzledTile<keys, terms * DV>;
};

// Calls f with the shape for a call.
constexpr int few_keys = 2048;
template <class F>
auto with_shape(const AttentionCall& x, F&& f) {
  const int size = x.dv > 128 ? 256 : std::max(x.d, x.dv);
  return with_constant<64, 96, 128, 192, 256>(size, [&](auto d) {
    if constexpr (d == 64)
      return x.T < few_keys ? f(Shape<64, 64, 4, false>()) : f(Shape<64, 64, 3>());
    else
      return f(Shape<d, values_beside(d), 2>());
  });
}
// The same of f32.
template <class F>
auto with_f32_shape(const AttentionCall& x, F&& f) {
  const bool narrow = x.d <= 64 && x.dv <= 64;
  if (is_of_two_terms(x))
    return narrow ? f(Shape<64, 64, 3, true, two_terms>()) : f(Shape<128, 128, 2, true, two_terms>());
  if (!narrow) return f(Shape<128, 128, 2, true, one_term>());
  return x.T < few_keys ? f(Shape<64, 64, 4, false, one_term>()) : f(Shape<64, 64, 3, true, one_term>());
}

}  // namespace tg::cuda::attention::forward_sm90

namespace tg::cuda::attention::forward_576_sm90 {

// Whether values are the first columns of keys, as with latent attention: then a tile is both.
inline bool values_are_keys(const AttentionCall& x) {
  const auto same = [](std::int64_t a, std::int64_t b, std::int64_t count) { return count == 1 || a == b; };
  return x.v.data == x.k.data && x.dv <= x.d && same(x.v.batch, x.k.batch, x.B) &&
         same(x.v.head, x.k.head, x.Hk) && same(x.v.row, x.k.row, x.T);
}

// d ≤ 576, dv ≤ 512. One warpgroup for scores, two for sums, 256 columns each.
template <bool values_are_keys_>
struct Shape {
  static constexpr bool values_are_keys = values_are_keys_, split = false;
  static constexpr int groups = 1, queries = 64, keys = 64, threads = 512;  // groups of 64 queries
  static constexpr int k_stages = values_are_keys ? 2 : 1, items = 2, thirds = 3;
  static constexpr int producer_registers = 32, adder_registers = 176;  // the scorer's are those at launch
  using Q = tile::SwizzledTile<queries, 576>;
  using K = tile::SwizzledTile<keys, 576>;
  using V = tile::SwizzledTile<keys, 512>;
};

}  // namespace tg::cuda::attention::forward_576_sm90

namespace tg::cuda::attention::backward_sm90 {

// d ≤ D, dv ≤ DV. Each warpgroup has half of the keys and, of z_Q, half of the queries. As wgmma has 64 rows,
// z_Q is computed transposed if there are not 64 queries for each: some columns by each. Of wide heads two
// blocks of a cluster have 64 keys each; each warpgroup has all of the block's keys, and a quarter of the
// columns of the cluster's z_Q. With last_stores, the last block to add to a tile's z_Q stores it.
template <int D_, int DV_, bool last_stores_, Numbers numbers = of_16_bits>
struct Shape {
  static constexpr int D = D_, DV = DV_, terms = numbers == two_terms ? 2 : 1;
  static constexpr bool wide = D > 192, last_stores = last_stores_, split = numbers != of_16_bits;
  static constexpr int blocks = backward_blocks(D);  // of a cluster
  static constexpr int keys = wide ? 64 : 128, queries = backward_queries(D, terms == 2), stages = 2,
                       threads = 384, z_a_stages = wide ? 1 : 2;
  static constexpr int producer_registers = 24, consumer_registers = 240;
  // Under a mask, blocks of a head that run at a time.
  static constexpr int least_together = wide ? 4 : 2, most_together = 8;
  static constexpr bool transposes = !wide && queries != 128;
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
  using ZQ = tile::Accumulator<16, transposes ? queries : wide ? D / 4 : D>;
};

// What the host computes of a call.
struct Plan {
  CUtensorMap q, k, v, z_o;
  int group, tiles;   // query heads of a key head; tiles of queries of a head
  float factor, cap;  // as Score has them
  float scale;        // of z_K
  bool free_order;
  const Powers* powers;  // of operands that are split
};

}  // namespace tg::cuda::attention::backward_sm90
