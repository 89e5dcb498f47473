// The memory plan: where every buffer of a program lies, in the arena or in the block of inputs, results and
// constants. Nothing is allocated yet.
#pragma once

#include <tilegrad/core/run/log.h>
#include "core/compile/buffers.h"

namespace tg {

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
