// The number of bytes that attention moves between global memory and the chip, by the model of [Stratos,
// FlashAttention §1.3]. The number of reads depends on the tiles that fit on the chip. The tiles of the
// kernels depend on the head size and the GPU.
#pragma once

#include <optional>
#include <string_view>

#include "tools/bench/attention_cell.h"

namespace tg::bench {

struct Settings;

// The tile size of a thread block, and the on-chip memory that it needs in bytes.
struct Tile {
  std::int64_t queries = 0, keys = 0, stages = 1;  // stages: tiles of the reloaded operands that
                                                   // are in memory at the same time
  // On-chip memory in bytes. Forward: Q and stages × (K, V). Backward: K, V, stages × (Q, z_O), and the z_A
  // tile.
  std::int64_t on_chip(const AttentionCell& c, bool backward, std::int64_t size) const;
};

// Tiles of a kernel on the GPU with that name or, for "", of the CPU's kernels. `size` is the size of an
// element in bytes; f32 is modeled as an f16 split. Backward passes without a Hopper kernel are modeled as
// the one-pass kernel. The numbers are copied from backends/cuda/attention/shapes.h and shapes_sm90.h, which
// only nvcc can compile. The test emulated_attention_tiles checks that they are equal.
Tile tile_of(const AttentionCell& c, bool backward, std::int64_t size, const std::string& gpu);

struct Bytes {
  double read = 0, written = 0;
};

// The traffic of standard attention, in which GEMMs and a softmax read and write S and P [L, T] in memory. A
// mask does not reduce it.
Bytes materialised(const AttentionCell& c, bool backward, std::int64_t size);

// The traffic of fused attention:
// - Forward: each tile of queries reads Q once, and K and V of the keys that some of its queries see.
// - Backward: each tile of keys reads K and V once, and Q, z_O and the row statistics of the queries that see
//   some of its keys. It adds to z_Q in f32.
//
// Caches outside of the thread block's memory count as global memory.
Bytes fused(const AttentionCell& c, bool backward, std::int64_t size, const Tile& tile);

// The traffic with unlimited on-chip memory: every operand is read once and every result is written once.
Bytes least(const AttentionCell& c, bool backward, std::int64_t size);

// The values of `--once`, each of which is a program that runs once.
constexpr const char* once_forward = "forward";
constexpr const char* once_backward = "backward";
constexpr const char* once_materialised = "materialised";            // the forward pass
constexpr const char* once_materialised_both = "materialised-both";  // both passes

// The measured traffic of a GPU for a cell, from the counters of NVIDIA's profiler ncu. ncu runs this tool
// with --once and counts only the kernels of that run. Caches are flushed before each kernel. Returns nothing
// if ncu may not read the counters, or if memory is insufficient.
std::optional<Bytes> counted(const AttentionCell& c, const char* once, const Settings& settings);

// Sums the counters of all kernels in ncu's CSV output. Returns nothing if there are none.
std::optional<Bytes> parse_counters(std::string_view csv);

}  // namespace tg::bench
