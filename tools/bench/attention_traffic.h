// How many bytes attention moves between global memory and the chip, by the model of
// [Stratos, FlashAttention §1.3]: reads as a function of the tiles that fit on the chip.
#pragma once

#include "tools/bench/attention_tiles.h"

namespace tg::bench {

struct Bytes {
  double read = 0, written = 0;
};

// S and P [L, T] in memory, masked or not, as matrix products and a softmax read and write them.
Bytes materialised(const AttentionCell& c, bool backward, std::int64_t size);

// Forward: each tile of queries reads Q once, and K and V of the keys that some of its queries see. Backward:
// each tile of keys reads K and V once, and Q, z_O and the row statistics of the queries that see some of
// its keys, and adds to z_Q in f32. Caches beyond the block's own memory count as memory.
Bytes fused(const AttentionCell& c, bool backward, std::int64_t size, const Tile& tile);

// Every operand read once and every result written once: what unbounded on-chip memory would leave.
Bytes least(const AttentionCell& c, bool backward, std::int64_t size);

}  // namespace tg::bench
