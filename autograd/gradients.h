// Reverse-mode differentiation: a walk over the list of nodes, backwards. Every gradient is an ordinary node
// of the same graph.
#pragma once

#include <tilegrad/core/graph/graph.h>

namespace tg {

// z_w = ∂loss/∂w for each w, with w's shape and dtype, summed over all uses [Stratos, Efficient
// Attention §C eq. 1]. `loss` must have one element unless a cotangent of its shape is given; then the result
// is (∂loss/∂w)ᵀ·cotangent. A tensor that the loss does not depend on gets zeros. Throws GradientError, with
// the user's line, where the path passes through an op without a gradient, and for a tensor that the loss
// depends on through integers or booleans only (an argmax, a comparison, a cast): a gradient is never cut
// silently, only by stop_gradient(). Integers beside a path of floating values are ordinary: masks, indices,
// targets. The result can be differentiated again.
std::vector<Tensor> gradients(const Tensor& loss, const std::vector<Tensor>& wrt,
                              const Tensor& cotangent = {});

// Whether the loss depends on the tensor through floating values.
bool depends_on(const Tensor& loss, const Tensor& w);

// Runs `f`. What it records is computed again for the backward pass instead of being kept: only its inputs
// and outputs stay in memory in between.
std::vector<Tensor> checkpoint(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& f,
                               const std::vector<Tensor>& inputs);

}  // namespace tg
