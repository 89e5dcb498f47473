// Where a NaN or an infinity comes from: a run once more, with every intermediate result looked at.
#pragma once

#include <string>

#include <tilegrad/core/compile/compile.h>

namespace tg {

// The first node, in the order they were recorded, that has a NaN or an infinity in its result though all
// that it read was finite; an input or parameter that is not finite comes before all of them:
//   "log (transformer.h.0.mlp) made -inf at [0, 3] of f32 [4, 16] from finite numbers (train.cpp:41)"
// Empty if there is none. Every result is kept and nothing is fused, assigned or written over, so this takes
// more memory and time than a run does; parameters must be what they were before the run it repeats, which
// they are after a step that an optimizer skipped. `step` as in Program::set_step.
std::string first_bad_node(Graph& graph, const std::vector<Feed>& feeds, std::uint64_t seed,
                           std::int64_t step, int threads = 0);

}  // namespace tg
