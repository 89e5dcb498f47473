// Placed: a program's buffers with their offsets.
#pragma once

#include "core/compile/memory_plan.h"
#include "core/compile/scheduled.h"

namespace tg {

struct Placed {
  Buffers buffers;
  MemoryPlan plan;
};

// Steps → buffers → offsets. status_bytes: Backend::status_bytes. reuse: false gives every buffer separate
// memory.
Placed placed(const Graph& graph, std::span<const LoweredStep> steps, const Scheduled& known,
              std::size_t status_bytes, bool reuse);

// Applies the orders that the scheduler proposes, if they need little more memory.
void reorder(const Graph& graph, std::vector<LoweredStep>& steps, const Scheduled& known,
             const CompileOptions& options, std::size_t status_bytes, Placed& p);

}  // namespace tg
