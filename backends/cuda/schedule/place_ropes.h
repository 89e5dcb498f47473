// Ropes of queries and keys move to the attention that reads them, and those of their gradients to the
// attention that makes them. A GPU's kernel may then compute them as well.
#pragma once

#include "core/compile/scheduler.h"

namespace tg::cuda {

// rope(q), rope(k), flash_attn and flash_attn_backward, rope(z_q), rope(z_k) follow one another, wherever
// these were recorded: a rope comes as late as its attention if that is the first to read it, and as early if
// it reads the attention's result. Attention that reads a cache stays as it is: what comes before it is the
// cache's new rows.
void place_ropes(const Graph& graph, std::vector<LoweredStep>& steps);

}  // namespace tg::cuda
