// linear_cross_entropy on Hopper without a pass over the logits: the product stores exp(l − c) in place of
// logits and adds up its rows (formulas: ops/linear_cross_entropy.cpp).
#pragma once

#include <string>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// Whether it computes a call: of bf16, with x and w in rows of c numbers that are multiples of 16 bytes, and
// V a multiple of 8. That does not depend on the number of rows, nor do the bits of a row.
bool is_for_head_loss(const Call& call);

// Bytes of workspace.
std::size_t head_loss_workspace(const Call& call);

void launch_head_loss(const Stream& s, const Call& call);

}  // namespace tg::cuda
