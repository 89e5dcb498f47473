// The tiles that attention's kernels work on, by head size and GPU.
#pragma once

#include "tools/bench/attention_cell.h"

namespace tg::bench {

// What a block of threads works on at a time, and the bytes of on-chip memory that this takes.
struct Tile {
  std::int64_t queries = 0, keys = 0, stages = 1;  // stages: tiles of the side that is loaded again and again
  // Forward: Q and stages × (K, V). Backward: K, V, and stages × (Q, z_O), and z_A.
  std::int64_t on_chip(const AttentionCell& c, bool backward, std::int64_t size) const;
};

// Tiles of a kernel on the GPU of that name or, for "", of the CPU's kernels. `size` is the bytes of an
// element; f32 is taken as two terms. A backward that is not Hopper's own is taken to be the one in one pass.
// The kernels have these numbers in backends/cuda/attention/shapes.h and shapes_sm90.h, which only nvcc
// reads; the test emulated_attention_tiles compares.
Tile tile_of(const AttentionCell& c, bool backward, std::int64_t size, const std::string& gpu);

}  // namespace tg::bench
