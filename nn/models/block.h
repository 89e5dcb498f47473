// Block: layers around a residual stream.
#pragma once

#include <tilegrad/nn/layers/module.h>

namespace tg::nn {

// x + after(layer(norm(x))), where both norms can be empty. Without `after` and dropout the layer itself adds
// x if it can (Module::adds_residual).
struct Branch {
  Layer norm, layer;
  Layer after = {};
};

// x [B, L, width] → [B, L, width]: one branch after the other, such as attention and then an MLP, with
// dropout on what each adds. Blocks of another form are Modules of their own.
class Block : public Module {
 public:
  Block(const Path& at, std::vector<Branch> branches, double dropout = 0);

 private:
  Tensor record(TensorArg x, const Call& call) const override;
  std::vector<Branch> branches_;
  double dropout_;
};

}  // namespace tg::nn
