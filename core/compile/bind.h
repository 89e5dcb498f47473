// Binding: a program's steps get their kernels and memory.
#pragma once

#include "core/compile/memory_plan.h"
#include "core/run/program_state.h"

namespace tg {

// The steps as kernels see them, without addresses (but for the targets of copies). `outputs` outlive a run.
std::vector<Step> steps_of(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                           std::span<const ValueId> outputs);

// What binding reads: the results of the passes before it.
struct Bindings {
  const Graph& graph;
  std::span<const LoweredStep> steps;
  const Joined& joined;
  const Buffers& buffers;
  const MemoryPlan& plan;

  // Layout of a value within its buffer.
  Layout layout_of(ValueId v) const;
};

// Allocates the arena, the block of inputs, results and constants, and the kernels' workspace, writes the
// constants, sets the addresses of state.steps and prepares them. Throws OutOfMemory with the sizes if they
// do not fit, DeviceError for a step that has no kernel. `poison`: see poison.h.
void bind(Program::State& state, const Bindings& passes, bool poison);

// The memory of a value, after bind.
Arg bound_arg(const Program::State& state, const Bindings& passes, ValueId v);

}  // namespace tg
