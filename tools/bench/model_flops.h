// The arithmetic that a training step of a model needs, however a program computes it.
#pragma once

#include <string>

#include <tilegrad/nn/models/language_model.h>

namespace tg::bench {

// A forward pass multiplies each token by each weight once, 2 FLOPs, and a backward pass takes twice as many:
// 6 per weight and token [Kaplan et al., Scaling Laws for Neural Language Models, 2020, §2.1]. Attention
// comes on top [Chowdhery et al., PaLM, 2022, appendix B], here of the pairs of query and key that its mask
// leaves: half of theirs. What is computed a second time to save memory does not count.
struct ModelFlops {
  double tokens = 0;   // of a step
  double weights = 0;  // of linear layers and the head, tied or not; no lookups in embeddings, gains, biases
  double attention = 0;  // FLOPs of a forward pass: 2·(d + dv) for each head and pair
  double step() const { return 6 * weights * tokens + 3 * attention; }
  std::string formula() const;  // with its numbers
};
ModelFlops model_flops(const nn::LanguageModel& model, std::int64_t batch);

}  // namespace tg::bench
