// The passes of compile() from a graph to steps and their memory, which need no backend. run_passes() calls
// them in order. This header declares the passes without a separate header. The first two have a separate
// .cpp file each; the others are in passes.cpp with the list.
#pragma once

#include "core/compile/assignments.h"
#include "core/compile/memory_plan.h"
#include "core/compile/scheduler.h"

namespace tg {

// Gradient sums are accumulated by the GEMMs that compute the terms. Each GEMM adds the sum so far to its own
// result, just as linear() adds a residual. The step that read all terms is removed.
//
// Removes fused steps that only sum values of one layout. Each term, except the term computed first, must be
// the result of a matmul without an addend, and nothing else may read it. If T terms of S bytes are all
// matmul results, this saves 2·S of (2·T + 1)·S bytes of memory traffic. The last GEMM writes the sum;
// `joined` contains its location if the sum has a different shape. In 16-bit dtypes the sum so far is rounded
// because it is stored. The product to which it is added is not rounded.
//
// This pass is not used for batch_invariant programs. With a batch of one sequence, a term that is broadcast
// over sequences has the layout of the sum and would be joined. A 16-bit row would then be rounded
// differently from the same row in a larger batch.
void add_in_products(const Graph& graph, std::vector<LoweredStep>& steps, Joined& joined,
                     const Outputs& outputs);

// Merges neighboring fused steps that read the same memory into one step with several results, which reads it
// once. Examples are the gradients of an op with several operands, and a value and the steps that use it.
// Values that are then read only inside the step are not stored.
void merge_fused(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs);

// Moves collective ops with Op::early directly after the steps that compute their operands, so that a rank
// frees the operands before the end of the backward pass. If each such op reduces a few gradients, this is
// ZeRO stage 2 (Rajbhandari et al., 2020). A backend may run a collective op a little later, concurrently
// with a step that leaves resources for it.
void hoist_collectives(const Graph& graph, std::vector<LoweredStep>& steps, const StepScheduler& scheduler);

// A program whose steps are final, except for their order and memory, as later passes need it.
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

// Steps → buffers → offsets. status_bytes: Backend::status_bytes. If `reuse` is false, every buffer gets
// separate memory.
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

// Runs all passes. status_bytes: Backend::status_bytes. If `reuse` is false, every buffer gets separate
// memory. The passes check only whether there is a memory budget, not its size. Throws the errors of
// compile() that concern tensors, assignments and updates.
Passes run_passes(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options, bool reuse,
                  const StepScheduler& scheduler, std::size_t status_bytes);

}  // namespace tg
