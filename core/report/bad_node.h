// Finds the origin of a NaN or an infinity: repeats a run and checks every intermediate result.
#pragma once

#include <string>

#include <tilegrad/core/compile/compile.h>

namespace tg {

// Returns a string about the first node, in recording order, that computes a NaN or an infinity from finite
// inputs. If a parameter or input is not finite, reports it instead. The string is empty if all results are
// finite. Example: "log (transformer.h.0.mlp) made -infinity at [0, 3] of f32 [4, 16] from finite numbers
// (train.cpp:41)".
//
// The repeated run keeps all results in memory, without fusion, assignment or reuse, so it needs more memory
// and time than a normal run. Parameters must have their values from before the run. This is the case after a
// step that an optimizer skipped. `seed` and `step` must be the values of the original run
// (Program::set_step). `threads` is the number of CPU threads; 0: all.
std::string first_bad_node(Graph& graph, const std::vector<Feed>& feeds, std::uint64_t seed,
                           std::int64_t step, int threads = 0);

}  // namespace tg
