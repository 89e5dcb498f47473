// ModelParts: the layers that make up a language model. Block: layers around a residual stream.
#pragma once

#include <string>
#include <vector>

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
  Tensor record(TensorArg x, const CallArgs& call) const override;
  std::vector<Branch> branches_;
  double dropout_;
};

struct ModelParts {
  std::string name = {};           // of all nodes: "transformer"
  std::int64_t context = 0;        // the most tokens in a row
  Layer tokens = {};               // ids i32 or i64 [B, L] → [B, L, width]
  Layer positions = {};            // ids → [L, width] or [B, L, width], added to these; or empty
  double dropout = 0;              // of the sum
  std::vector<Layer> blocks = {};  // each [B, L, width] → [B, L, width]
  Layer norm = {};                 // of the last block's result; or empty
  Layer head = {};                 // [..., width] → logits [..., vocabulary]
};

}  // namespace tg::nn
