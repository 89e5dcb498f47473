// Recomputation, or rematerialisation, for CompileOptions::memory_budget: values are computed again right
// before their late uses instead of being kept in between. First those that are cheap, such as outputs of
// norms, activations and half copies of weights. Where these are not enough, products and attention as well.
// checkpoint(), in contrast, runs whole parts of a model again.
#pragma once

#include <tilegrad/core/run/program.h>
#include "core/compile/scheduled.h"

namespace tg {

struct Recomputed {
  std::size_t before = 0, arena = 0;    // bytes of the arena without and with it
  MemoryReport::Recomputed again = {};  // all but `saved`
};

// Adds steps that compute values again until the arena needs at most `arena` bytes, or until no more can be
// saved; what is no longer used early moves to its first use. Results have the same bits as without it.
// Greedy: in each round the choice that frees the most bytes at the step where most are alive, for its time
// (price_of in core/run/cost.h). If that does not fit, it begins again with products and attention among the
// choices. In the end what turned out not to be needed is undone, most expensive first.
// Records copies of the nodes that are computed again.
Recomputed recompute_within(std::size_t arena, Graph& graph, std::vector<LoweredStep>& steps,
                            const Scheduled& known);

}  // namespace tg
