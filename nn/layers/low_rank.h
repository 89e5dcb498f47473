// Low-rank adapters of Linear layers (Hu et al., "LoRA", 2021). Those of a model are made by add_lora()
// (nn/models/lora.h).
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <tilegrad/nn/layers/weight.h>

namespace tg::nn {

enum class Mode;

// What is added to the result of a Linear: scale·B(A·dropout(x)). The product B·A is not made.
struct LowRank {
  Weight a, b;                 // [rank, in] and [n, rank]
  std::int64_t first_row = 0;  // of B, whose rows from there on give the layer's outputs
  double scale = 1;
  double dropout = 0;  // of x, in training

  Tensor rows_of_b(TensorArg x, std::int64_t out) const;  // [out, rank], the layer's, in the graph of x
  // y [..., out] + what it adds for x [..., in]; in y's dtype.
  Tensor added_to(const Tensor& y, TensorArg x, Mode mode) const;
};

// A Linear of a model, with its place for an adapter, which copies of the layer share.
struct LinearPlace {
  std::string path = {};  // "model.layers.0.self_attn.q_proj"
  Weight weight = {};     // [out, in]
  std::int64_t in = 0, out = 0;
  bool is_head = false;                                  // gives the logits
  std::shared_ptr<std::optional<LowRank>> adapter = {};  // never null
};

}  // namespace tg::nn
