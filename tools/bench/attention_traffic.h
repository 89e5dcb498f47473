// How many bytes attention moves between global memory and the chip, by the model of
// [Stratos, FlashAttention §1.3]: reads as a function of the tiles that fit on the chip. The kernels' tiles
// depend on the head size and the GPU.
#pragma once

#include <optional>
#include <string_view>

#include "tools/bench/attention_cell.h"

namespace tg::bench {

struct Settings;

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

// What `--once` may name: one program, run once.
constexpr const char* once_forward = "forward";
constexpr const char* once_backward = "backward";
constexpr const char* once_materialised = "materialised";            // the forward
constexpr const char* once_materialised_both = "materialised-both";  // the forward and the backward

// Bytes of a GPU's memory that a cell really moves, by the counters that NVIDIA's profiler ncu reads: this
// tool itself under ncu, with --once; nothing if ncu has no rights to read counters, or memory is short. Only
// the kernels of the one run count. Caches are emptied before each.
std::optional<Bytes> counted(const AttentionCell& c, const char* once, const Settings& settings);

// The sums over all kernels in ncu's CSV; nothing if there are none.
std::optional<Bytes> parse_counters(std::string_view csv);

}  // namespace tg::bench
