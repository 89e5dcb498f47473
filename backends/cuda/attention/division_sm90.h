// How the forward on Hopper divides its work, as the host computes it. An item is some queries of a head with
// the keys that they see. Where there are fewer items than multiprocessors, the keys of each are cut in
// parts, whose results are merged; and queries of several heads that share keys become one tile.
#pragma once

#include "backends/cuda/attention/workspace.h"

namespace tg::cuda::attention {

// At d 64 there are other shapes for fewer.
constexpr int few_keys = 2048;

// The queries of an item, the keys of its tiles and the blocks of a multiprocessor, as shapes_sm90.h has
// them.
struct ForwardTile {
  int queries, keys, blocks = 1;
};
ForwardTile forward_tile(const AttentionCall& x);

// The call with the queries of all heads that share a key head as queries of one head, those of a head after
// those of the head before, if that makes fewer items and q and o lie so in memory, as ξ does. Which keys a
// query sees, and its sink, are then those of query i % L of the head.
AttentionCall with_heads_as_rows(const AttentionCall& x);

// Into how many parts the keys of an item of such a call are cut; 1 where that is fastest.
int parts_of_keys(const AttentionCall& x, const Gpu& gpu);

}  // namespace tg::cuda::attention
