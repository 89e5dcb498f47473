// ModelParts: the layers of a language model. Block: layers with residual connections.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/nn/layers/module.h>

namespace tg::nn {

// A residual branch: x + after(layer(norm(x))). Both norms can be empty. Without `after` and dropout, the
// layer itself adds x if it can (Module::adds_residual).
struct Branch {
  Layer norm, layer;  // norm of the input; the layer
  Layer after = {};   // norm of the result
};

// Branches in sequence, such as attention and an MLP, each with dropout on its result: x [B, L, width] → [B,
// L, width]. Write a Module for a block of a different structure.
class Block : public Module {
 public:
  // `dropout` is the probability in training.
  Block(const Path& at, std::vector<Branch> branches, double dropout = 0);

 private:
  Tensor record(TensorArg x, const CallArgs& call) const override;
  std::vector<Branch> branches_;
  double dropout_;
};

// The layers of a language model.
struct ModelParts {
  std::string name = {};     // name of all nodes: "transformer"
  std::int64_t context = 0;  // maximum sequence length in tokens
  Layer tokens = {};         // ids i32 or i64 [B, L] → [B, L, width]
  Layer positions = {};      // ids → [L, width] or [B, L, width], added to the embedded tokens; or empty
  double dropout = 0;        // probability for that sum, in training
  std::vector<Layer> blocks = {};  // each [B, L, width] → [B, L, width]
  Layer norm = {};                 // after the last block; or empty
  Layer head = {};                 // [..., width] → logits [..., vocabulary]
};

}  // namespace tg::nn
