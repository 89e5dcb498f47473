// The passes of compile() that convert a graph to steps and plan their memory. They need no backend.
// run_passes() calls them in order. This header declares all passes without a separate header. The first two
// are defined in separate .cpp files, and the others in passes.cpp.
#pragma once

#include "core/compile/assignments.h"
#include "core/compile/memory_plan.h"
#include "core/compile/scheduler.h"

namespace tg {

// The GEMMs that compute the terms of a gradient sum also accumulate the sum. Each GEMM adds the sum so far
// to its result, as linear() adds a residual. The step that summed all terms is removed.
//
// Removes fused steps that only sum values of one layout. Each term except the first must be the result of a
// matmul without an addend, and nothing else may read the term. If all T terms are matmul results with S
// bytes, this saves 2·S of (2·T + 1)·S bytes of memory traffic. The last GEMM writes the sum. If the sum has
// a different shape, `joined` contains the location of the GEMM's result. In 16-bit dtypes, the sum so far is
// rounded because it is stored. The product to which it is added is not rounded.
//
// Batch-invariant programs do not use this pass. If a batch has only one sequence, a term that is broadcast
// over sequences has the layout of the sum, and a GEMM would accumulate it. A 16-bit row would then be
// rounded differently from the same row in a larger batch.
void add_in_products(const Graph& graph, std::vector<LoweredStep>& steps, Joined& joined,
                     const Outputs& outputs);

// Merges neighboring fused steps that read the same memory. The merged step has several results and reads the
// memory once. Examples are the gradients of an op with several operands, or a value and the steps that use
// it. If only the merged step reads a value, the value is not stored.
void merge_fused(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs);

// Moves collective ops with Op::early directly after the steps that compute their operands. A rank then frees
// the operands before the end of the backward pass. If each such op reduces a few gradients, this is ZeRO
// stage 2 (Rajbhandari et al., 2020). A backend may run a collective op slightly later, concurrently with a
// step that leaves resources unused.
void hoist_collectives(const Graph& graph, std::vector<LoweredStep>& steps, const StepScheduler& scheduler);

// A program with final steps, for later passes. Only the order and the memory of the steps may still change.
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

// Applies orders that the scheduler proposes, unless they need much more memory.
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
// memory. The passes check whether there is a memory budget, but do not use its size. Throws the errors of
// compile() about tensors, assignments and updates.
Passes run_passes(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options, bool reuse,
                  const StepScheduler& scheduler, std::size_t status_bytes);

}  // namespace tg
