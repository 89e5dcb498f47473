// Finds the origin of a NaN or an infinity: repeats a run and checks every intermediate result.
#pragma once

#include <string>

#include <tilegrad/core/compile/compile.h>

namespace tg {

// Returns the first node, in recording order, whose result has a NaN or an infinity although all of its
// inputs are finite. A parameter or input that is not finite is reported first. The string is empty if all
// results are finite. Example: "log (transformer.h.0.mlp) made -infinity at [0, 3] of f32 [4, 16] from finite
// numbers (train.cpp:41)".
//
// All results are kept in memory, without fusion, assignment or reuse, so this needs more memory and time
// than a run. Parameters must have the values from before the repeated run, as they do after a step that an
// optimizer skipped. `seed` and `step` are those of the run (Program::set_step); `threads` is the number of
// CPU threads, 0 for all.
std::string first_bad_node(Graph& graph, const std::vector<Feed>& feeds, std::uint64_t seed,
                           std::int64_t step, int threads = 0);

}  // namespace tg
