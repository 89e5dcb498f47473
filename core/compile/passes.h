// The passes of compile() from a graph to steps and their memory, which need no backend. run_passes() calls
// them in their order. Here are those that have no header of their own: each of the first two has a .cpp file
// of its own, the others are in passes.cpp with the list.
#pragma once

#include "core/compile/assignments.h"
#include "core/compile/memory_plan.h"
#include "core/compile/scheduler.h"

namespace tg {

// A sum of products is made by the products themselves. Each product adds what was summed before it to its
// own result, as linear() adds a residual, and the pass that read all terms is gone.
//
// Removes chains that are nothing but a sum of values of one layout, if each of these except for the one that
// is made first is the result of a matmul without an addend that nothing else reads. With T terms of S bytes,
// all of them products, that saves 2·S of (2·T + 1)·S bytes. The last product writes the sum: `joined` says
// where, if the sum has another shape. In half types the sum so far is rounded, as it is stored, but the
// product that it is added to is not.
//
// Not for programs of batch_invariant: a term that is broadcast over texts lies as the sum does if there is
// one text, and a row of a half type would have other bits alone.
void add_in_products(const Graph& graph, std::vector<LoweredStep>& steps, Joined& joined,
                     const Outputs& outputs);

// Neighbouring fused steps that read the same memory become one step with several results, which reads it
// once. Examples are the gradients of an op with several operands, and a value with the steps that use it.
// Values that are then read only inside the step are not stored.
void merge_fused(const Graph& graph, std::vector<LoweredStep>& steps, std::span<const ValueId> outputs);

// Collective ops that a rank runs as soon as their operands exist (Op::early), which it then frees before the
// end of the backward pass. With reductions of a few gradients each that is ZeRO stage 2 (Rajbhandari et al.,
// 2020). A backend may run them a little later, at the same time as a step that leaves resources for it.
void hoist_collectives(const Graph& graph, std::vector<LoweredStep>& steps, const StepScheduler& scheduler);

// What the compiler knows of a program when its steps are final, but for their order and their memory.
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

// What the passes make of a graph.
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

// Runs them all. status_bytes: Backend::status_bytes. reuse: false gives every buffer separate memory. Throws
// Error for tensors, assignments and updates as compile() does. Of a memory budget it only uses whether there
// is one.
Passes run_passes(Graph& graph, const std::vector<Tensor>& fetch, const CompileOptions& options, bool reuse,
                  const StepScheduler& scheduler, std::size_t status_bytes);

}  // namespace tg
