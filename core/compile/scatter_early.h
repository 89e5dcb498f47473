// Sums over ranks of which each keeps a piece (scatter_sum), right behind what they add up, which then is not
// kept until the end of the backward pass. With sums of a few gradients each that is ZeRO stage 2
// (Rajbhandari et al., 2020).
#pragma once

#include <vector>

#include "core/compile/lower.h"

namespace tg {

void scatter_early(const Graph& graph, std::vector<LoweredStep>& steps);

}  // namespace tg
