// The passes of compile() from a graph to steps and their memory, which need no backend. run_passes() calls
// them in order. This header declares the passes without a separate header. The first two have a separate
// .cpp file each; the others are in passes.cpp with the list.
#pragma once

#include "core/compile/assignments.h"
#include "core/compile/memory_plan.h"
#include "core/compile/scheduler.h"

namespace tg {

// Gradient sums are accumulated by the GEMMs that compute the terms. Each GEMM adds the sum so far to its own
// result, as linear() adds a residual, and the pass that read all terms is removed.
//
// Removes fused steps that only sum values of one layout. Each term, except the one computed first, must be
// the result of a matmul without an addend, and nothing else may read it. For T terms of S bytes that are all
// matmul results, this saves 2·S of (2·T + 1)·S bytes. The last GEMM writes the sum; `joined` contains its
// location if the sum has a different shape. In 16-bit dtypes the sum so far is rounded because it is stored,
// but the product to which it is added is not.
//
// Not used for batch_invariant programs: a term that is broadcast over sequences has the layout of the sum if
// there is one sequence. A row in a 16-bit dtype would then be rounded differently in a batch of one.
void add_in_products(const Graph& graph, std::vector<LoweredStep>& steps, Joined& joined,
                     const Outputs& outputs);

// Merges neighboring fused steps that read the same memory into one step with several results, which reads it
// once. Examples are the gradients of an op with several operands, and a value with the steps that use it.
// Values that are then read only inside the step are not stored.
void merge_fused(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs);

// Moves collective ops with Op::early directly after the steps that compute their operands, so that a rank
// frees the operands before the end of the backward pass. With reductions of a few gradients each, that is
// ZeRO stage 2 (Rajbhandari et al., 2020). A backend may run them a little later, concurrently with a step
// that leaves resources for them.
void hoist_collectives(const Graph& graph, std::vector<LoweredStep>& steps, const StepScheduler& scheduler);

// The compiler's knowledge about a program whose steps are final, except for order and memory.
struct Scheduled {
  const Joined& joined;
  const Outputs& outputs;
  const std::vector<Assign>& assign;
  const std::vector<bool>& directly;  // see written_directly
  const StepScheduler& scheduler;
};

// A program's buffers with their offsets.
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

// The results of the passes.
struct Passes {
  Outputs outputs;
  std::vector<LoweredStep> steps;
  Joined joined;
  std::vector<bool> directly;  // see written_directly
  const StepScheduler* scheduler = nullptr;
  Placed placed;

  Scheduled known(const std::vector<Assign>& assign) const {
    return {joined, outputs, assign, directly, *scheduler};
  }
};

// Runs all passes. status_bytes: Backend::status_bytes. reuse = false: every buffer gets separate memory. The
// passes only use whether there is a memory budget, not its size. Throws Error for tensors, assignments and
// updates, as compile().
Passes run_passes(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options, bool reuse,
                  const StepScheduler& scheduler, std::size_t status_bytes);

}  // namespace tg
