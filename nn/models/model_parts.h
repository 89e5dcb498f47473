// ModelParts: the layers that make up a language model.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/nn/layers/module.h>

namespace tg::nn {

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
