// Text from a model, token by token. Every new token costs one run over the last `context` tokens.
#pragma once

#include <span>
#include <vector>

#include "core/compile.h"
#include "nn/autocast.h"
#include "nn/gpt.h"

namespace tg {

// A token drawn from softmax(logits / temperature) by the uniform number u in [0, 1); the likeliest one, the
// first of equals, at temperature 0. Logits that are NaN are never drawn; Error when nothing else is there.
std::int32_t sample_token(std::span<const float> logits, double temperature, double u);

class Generator {
 public:
  explicit Generator(const Gpt& model, int threads = 0, Precision precision = Precision::full);

  // Appends `count` tokens to a text of at least one; equal seeds give equal texts.
  void extend(std::vector<std::int32_t>& tokens, std::int64_t count, double temperature, std::uint64_t seed);

 private:
  std::int64_t context_, vocabulary_;
  Graph graph_;
  Tensor window_, logits_;  // i32 [1, context], f32 [1, context, vocabulary]
  Program program_;
};

}  // namespace tg
