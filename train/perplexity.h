// How well a model predicts a text: the mean loss of its tokens, and the perplexity exp(loss).
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <source_location>
#include <span>

#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/models/language_model.h>

namespace tg::train {

struct PerplexityOptions {
  // Tokens from the beginning of a window to that of the next one; 0: half the model's context. The smaller,
  // the more tokens each one is predicted from, and the more windows there are.
  std::int64_t stride = 0;
  std::int64_t batch = 1;  // windows at once
  int threads = 0;         // 0: all of the machine's
  nn::Precision precision = nn::Precision::full;
  // Called after each batch, with the windows that are done and all of them; false ends it.
  std::function<bool(std::int64_t done, std::int64_t all)> progress = {};
};

struct Perplexity {
  double nats = 0;          // Σ −log p(token | those before it in its window)
  std::int64_t tokens = 0;  // that were predicted
  std::int64_t windows = 0;

  double loss() const { return nats / static_cast<double>(tokens); }  // nats per token
  double value() const { return std::exp(loss()); }
};

// Windows of the model's context begin at 0, stride, 2·stride, … up to the one that reaches the end. A window
// predicts those of its tokens that no window before it did; its first one it cannot predict. So with a
// stride below the context every token but the text's first is predicted, once, from at least context −
// stride tokens, except near the beginning; with stride = context the first token of each window is left out.
// Throws ShapeError for fewer than 2 tokens, and for a stride that is negative or above the context.
Perplexity perplexity(const nn::LanguageModel& model, std::span<const std::int32_t> tokens,
                      const PerplexityOptions& options = {}, const Where& where = Where::current());

}  // namespace tg::train
