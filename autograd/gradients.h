// Reverse-mode differentiation: walks the list of nodes backwards. Gradients are ordinary nodes of the same
// graph.
#pragma once

#include <tilegrad/core/graph/graph.h>

namespace tg {

// Returns z_w = ∂loss/∂w for each w, with the shape and dtype of w [Stratos, Efficient Attention §C eq. 1].
// The gradients of all uses of w are added. `loss` must have one element, unless a cotangent of the same
// shape is given. With a cotangent, the result is (∂loss/∂w)ᵀ·cotangent. If the loss does not depend on w,
// z_w is zero. The result can be differentiated again.
//
// Only stop_gradient() cuts a gradient silently. If a path from w to the loss contains an op without a
// gradient, GradientError is thrown, with the user's source line. It is also thrown if the loss depends on w
// only through integers or booleans, for example from an argmax, a comparison or a cast. Integer operands of
// ops on the path, such as masks, indices and targets, are allowed.
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
