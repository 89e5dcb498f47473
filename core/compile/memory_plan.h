// The memory plan of a program. It contains an offset for every buffer, in the arena or in the block of
// inputs, results and constants. Nothing is allocated yet. The planner assigns the offsets in the arena from
// the lifetimes of the buffers. Buffers that are live at the same step never overlap.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <tilegrad/core/run/log.h>
#include "core/compile/buffers.h"

namespace tg {

// A buffer is written at step `first` and not accessed after step `last`, both inclusive.
struct Lifetime {
  std::size_t bytes = 0;
  int first = 0, last = 0;
};

struct Placement {
  std::vector<std::size_t> offset;  // offset of each buffer in the arena, a multiple of 64
  std::size_t peak = 0;             // size of the arena in bytes
  std::size_t alive = 0;            // maximum of live bytes at a step; a lower bound for `peak`
};

// Assigns offsets. Lifetimes must be sorted by `first`. If `reuse` is false, every buffer gets separate
// memory. Checks use such a plan as a reference. The run time is O(n log n).
Placement plan_memory(std::span<const Lifetime> buffers, bool reuse = true);

// Whether no two buffers that are live at the same step overlap. The check is independent of the planning
// algorithm. The run time is O(n log n).
bool plan_is_sound(std::span<const Lifetime> buffers, const Placement& placement);

struct MemoryPlan {
  std::vector<std::size_t> offset;  // per buffer: offset in the arena or the block; 0 for parameters
  std::vector<int> arena_order;     // buffers of the arena with at least one byte, by first step
  std::size_t results_offset = 0;   // offset of the executable's status; results follow it
  MemoryReport report;              // without the workspace, which only the executable knows
  // Size of the block of inputs, results and constants in bytes.
  std::size_t leaf_bytes() const { return report.inputs + report.results + report.constants; }
};

// Plans the arena and the block of inputs, results and constants. The block has three parts:
// - the inputs in recording order, and the state of random numbers; one copy can feed all of them
// - `status_bytes` (Backend::status_bytes) and small results; one copy fetches all of them
// - the constants
//
// If `reuse` is false, every buffer gets separate memory.
MemoryPlan plan_buffers(const Graph& graph, const Buffers& buffers, std::size_t status_bytes, bool reuse);

// The buffers of the arena, sorted by their first step, for Program::buffers.
std::vector<ArenaBuffer> arena_buffers(const Buffers& buffers, const MemoryPlan& plan);
// All buffers for the log: first the buffers of the arena, sorted by their first step, then the others.
std::vector<PlannedBuffer> planned_buffers(const Graph& graph, const Buffers& buffers,
                                           const MemoryPlan& plan);

}  // namespace tg
