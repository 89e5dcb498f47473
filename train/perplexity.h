// Perplexity of a model on a token sequence: exp of the mean loss per token.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <source_location>
#include <span>

#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/models/language_model.h>

namespace tg::train {

// Options of perplexity().
struct PerplexityOptions {
  // Tokens from the start of one window to the start of the next one; 0: half the model's context. A smaller
  // stride gives each token a longer context but needs more windows.
  std::int64_t stride = 0;
  std::int64_t batch = 1;                         // windows per batch
  int threads = 0;                                // 0: all cores of the machine
  nn::Precision precision = nn::Precision::full;  // of the forward pass
  // Called after each batch with the number of finished windows and of all windows; false ends the
  // computation.
  std::function<bool(std::int64_t done, std::int64_t all)> progress = {};
};

// The result of perplexity().
struct Perplexity {
  double nats = 0;           // Σ −log p(token | earlier tokens of its window)
  std::int64_t tokens = 0;   // number of predicted tokens
  std::int64_t windows = 0;  // number of evaluated windows

  // Mean loss in nats per token.
  double loss() const { return nats / static_cast<double>(tokens); }
  // Perplexity, exp(loss()).
  double value() const { return std::exp(loss()); }
};

// Computes the perplexity over sliding windows of the model's context length. They begin at 0, stride,
// 2·stride, … until a window reaches the end. A window predicts the tokens that earlier windows did not
// predict, but never its own first token. If the stride is below the context length, every token except the
// first of the sequence is predicted once. At least context − stride tokens precede it in its window, or
// fewer near the beginning of the sequence. If the stride equals the context length, the first token of each
// window is not predicted. Throws ShapeError for fewer than 2 tokens, and for a stride that is negative or
// above the context length.
Perplexity perplexity(const nn::LanguageModel& model, std::span<const std::int32_t> tokens,
                      const PerplexityOptions& options = {}, const Where& where = Where::current());

}  // namespace tg::train
