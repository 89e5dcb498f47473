// The work of compile() after its passes. It creates the steps for the kernels, checks that all ranks have
// the same steps, and binds the steps to kernels and memory.
#pragma once

#include "core/compile/memory_plan.h"
#include "core/run/program_state.h"

namespace tg {

// Returns the steps for the kernels. Only the targets of copies already have addresses. The values in
// `outputs` outlive a run.
std::vector<Step> steps_of(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                           std::span<const ValueId> outputs);

// Throws Error if a collective step and the communicator have different numbers of ranks. A null communicator
// means one rank. Unless `plan_only` is set, all ranks must call this function. It then compares the steps of
// all ranks by op, attributes, dtypes and layouts. If a step differs, throws Error with the first such step
// and the ranks. The comparison is needed because a collective step waits for the same step on all other
// ranks. Defined in agreement.cpp.
void check_ranks(std::span<const Step> steps, Communicator* ranks, bool plan_only);

// The results of the earlier passes, which binding reads.
struct Bindings {
  const Graph& graph;
  std::span<const LoweredStep> steps;
  const Joined& joined;
  const Buffers& buffers;
  const MemoryPlan& plan;

  // Layout of a value within its buffer.
  Layout layout_of(ValueId v) const;
};

// Allocates the arena, the block of inputs, results and constants, and the kernels' workspace. Writes the
// constants, sets the addresses of state.steps and prepares the steps. If `poison` is set
// (CompileOptions::verify), memory without a value is filled with bytes that are NaN in every floating type.
// A step that reads a dead or unwritten buffer then gives visibly wrong results. Throws OutOfMemory with the
// sizes, and DeviceError for a step without a kernel.
void bind(Program::State& state, const Bindings& passes, bool poison);

// The memory of a value, after bind().
Arg bound_arg(const Program::State& state, const Bindings& passes, ValueId v);

}  // namespace tg
