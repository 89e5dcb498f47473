// Recomputation, or rematerialisation, for CompileOptions::memory_budget: values that are cheap to compute,
// such as outputs of norms, activations and half copies of weights, are computed again right before their
// late uses instead of being kept in between. Unlike checkpoint(), which runs whole parts of a model again,
// it never repeats a product or an attention.
#pragma once

#include "core/compile/assignments.h"
#include "core/compile/join.h"

namespace tg {

// What the compiler knows of a program when its steps are final, but for their memory.
struct Scheduled {
  const Joined& joined;
  const Outputs& outputs;
  const std::vector<Assign>& assign;
  const std::vector<bool>& directly;  // see written_directly
  // A backend may compute gelu_tanh as part of the product before it, from numbers that are not rounded yet
  // (backends/cuda/epilogue.h). Computed again by itself it would have other bits, so it is kept.
  bool has_epilogues;
};

struct Recomputed {
  std::size_t before = 0, arena = 0;  // bytes of the arena without and with it
  int steps = 0;                      // steps that compute something again
  double bytes = 0;                   // that these read and write
};

// Adds steps that compute values again until the arena needs at most `arena` bytes, or until no more can be
// saved; what is no longer used early moves to its first use. Results have the same bits as without it.
// Greedy: in each round the choice that frees the most bytes at the step where most are alive, for the bytes
// that it moves: that is time, by the copy bandwidth. In the end what turned out not to be needed is undone.
// Records copies of the nodes that are computed again.
Recomputed recompute_within(std::size_t arena, Graph& graph, std::vector<LoweredStep>& steps,
                            const Scheduled& known);

}  // namespace tg
