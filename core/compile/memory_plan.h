// The memory plan: where every buffer of a program lies, in the arena or in the block of inputs, results and
// constants. Nothing is allocated yet. Its planner places buffers with known lifetimes in one arena so that
// buffers that are alive at the same step never overlap.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <tilegrad/core/run/log.h>
#include "core/compile/buffers.h"

namespace tg {

// A buffer is written at step `first` and not touched after step `last` (inclusive).
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;
};

struct Placement {
  std::vector<std::size_t> offset;  // of each buffer in the arena, a multiple of 64
  std::size_t peak = 0;             // bytes of arena needed
  std::size_t alive = 0;            // most bytes alive at one step: no plan can need less
};

// Lifetimes must be ordered by `first`. reuse: false gives every buffer memory of its own, as a reference for
// checking. O(n log n).
Placement plan_memory(std::span<const Lifetime> buffers, bool reuse = true);

// Whether no two buffers that are alive at the same step overlap; does not depend on how the plan was made.
// O(n log n).
bool plan_is_sound(std::span<const Lifetime> buffers, const Placement& placement);

struct MemoryPlan {
  std::vector<std::size_t> offset;  // of each buffer in its block; 0 for parameters
  std::vector<int> arena_order;     // buffers of the arena that have bytes, by their first step
  std::size_t results_offset = 0;   // of the executable's status and the results behind it
  MemoryReport report;              // all but the workspace, which the executable knows
  // Bytes of the block of inputs, results and constants.
  std::size_t leaf_bytes() const { return report.inputs + report.results + report.constants; }
};

// The block of inputs, results and constants holds, in this order: inputs as they were recorded and the state
// of random numbers, so that feeding all of them is one copy; `status_bytes` (Backend::status_bytes) and
// small results, so that fetching them is one copy; constants. reuse: false gives every buffer memory of its
// own.
MemoryPlan plan_buffers(const Graph& graph, const Buffers& buffers, std::size_t status_bytes, bool reuse);

// The buffers of the arena, by their first step, as Program::buffers reports them.
std::vector<ArenaBuffer> arena_buffers(const Buffers& buffers, const MemoryPlan& plan);
// All buffers, as the log reports them: the arena's by their first step, then the others.
std::vector<PlannedBuffer> planned_buffers(const Graph& graph, const Buffers& buffers,
                                           const MemoryPlan& plan);

}  // namespace tg
