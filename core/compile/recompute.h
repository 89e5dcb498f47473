// Recomputation, or rematerialisation, for CompileOptions::memory_budget: values that are cheap to compute,
// such as outputs of norms, activations and half copies of weights, are computed again right before their
// late uses instead of being kept in between. Unlike checkpoint(), which runs whole parts of a model again,
// it never repeats a product or an attention.
#pragma once

#include "core/compile/scheduled.h"

namespace tg {

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
