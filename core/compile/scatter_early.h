// Sums over ranks of which each keeps a piece (scatter_sum), as soon as what they add up is there, which then
// is not kept until the end of the backward pass. With sums of a few gradients each that is ZeRO stage 2
// (Rajbhandari et al., 2020). In the middle of the pass a sum is put before the next gradient of attention,
// beside which a GPU exchanges data for little: products need the memory's rate and the multiprocessors more.
#pragma once

#include <vector>

#include "core/compile/lower.h"

namespace tg {

void scatter_early(const Graph& graph, std::vector<LoweredStep>& steps);

}  // namespace tg
