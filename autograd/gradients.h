// Reverse-mode differentiation: walks the list of nodes backwards. Gradients are ordinary nodes of the same
// graph.
#pragma once

#include <tilegrad/core/graph/graph.h>

namespace tg {

// Returns z_w = ∂loss/∂w for each w, with the shape and dtype of w, summed over all uses [Stratos, Efficient
// Attention §C eq. 1]. `loss` must have one element unless a cotangent of its shape is given; then the result
// is (∂loss/∂w)ᵀ·cotangent. A tensor on which the loss does not depend gets zeros. The result can be
// differentiated again.
//
// A gradient is never cut silently, only by stop_gradient(). Throws GradientError, with the user's source
// line, if a path from w to the loss passes through an op without a gradient. It also throws if the loss
// depends on w only through integers or booleans (an argmax, a comparison, a cast). Integers next to a path
// of floating values are allowed: masks, indices, targets.
std::vector<Tensor> gradients(const Tensor& loss, const std::vector<Tensor>& wrt,
                              const Tensor& cotangent = {});

// Whether the loss depends on the tensor through floating values.
bool depends_on(const Tensor& loss, const Tensor& w);

// Calls `f` on the inputs and returns its results (activation checkpointing, as torch.utils.checkpoint). The
// nodes that `f` records are recomputed in the backward pass. In between, only the inputs and outputs stay in
// memory.
std::vector<Tensor> checkpoint(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
                               const std::vector<Tensor>& inputs);

}  // namespace tg
