// Where a NaN or an infinity comes from: repeats a run and looks at every intermediate result.
#pragma once

#include <string>

#include <tilegrad/core/compile/compile.h>

namespace tg {

// The first node, in the order of recording, whose result has a NaN or an infinity although all of its inputs
// are finite; before that, the first parameter or input that is not finite:
//   "log (transformer.h.0.mlp) made -infinity at [0, 3] of f32 [4, 16] from finite numbers (train.cpp:41)"
// Empty if there is none. Every result is kept, and nothing is fused, assigned or overwritten, so this needs
// more memory and time than a run. Parameters must have the values from before the run that it repeats; after
// a step that an optimizer skipped they do. `step` as in Program::set_step.
std::string first_bad_node(Graph& graph, const std::vector<Feed>& feeds, std::uint64_t seed,
                           std::int64_t step, int threads = 0);

}  // namespace tg
