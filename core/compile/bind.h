// What compile() does after its passes: makes the steps that kernels see, checks that all ranks have the same
// ones, and binds them to kernels and memory.
#pragma once

#include "core/compile/memory_plan.h"
#include "core/run/program_state.h"

namespace tg {

// The steps as kernels see them, without addresses (but for the targets of copies). `outputs` outlive a run.
std::vector<Step> steps_of(const Graph& graph, std::span<const LoweredStep> steps, const Joined& joined,
                           std::span<const ValueId> outputs);

// Throws Error for a step that is of more or fewer ranks than there are: one without a communicator, which is
// null. Unless the program is only planned, also compares the steps of all ranks, which then must all call
// this, by op, attributes, dtypes and layouts: throws Error that names the first that differs and the ranks.
// A step that exchanges data waits for the same step of all others. In agreement.cpp.
void check_ranks(std::span<const Step> steps, Communicator* ranks, bool plan_only);

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
// do not fit, DeviceError for a step that has no kernel. `poison`, for CompileOptions::verify: memory that
// holds no value is filled with bytes that are NaN in every floating type, so that a step that reads a dead
// or unwritten buffer gives wrong bits instead of plausible ones.
void bind(Program::State& state, const Bindings& passes, bool poison);

// The memory of a value, after bind.
Arg bound_arg(const Program::State& state, const Bindings& passes, ValueId v);

}  // namespace tg
