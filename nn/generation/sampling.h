// Chooses the next token from a model's logits, by sampling or beam search.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tg::nn {

// How a token is chosen.
struct Sampling {
  // Divides the logits; 0: choose the likeliest token, the first one in case of ties.
  double temperature = 1;
  std::int64_t top_k = 0;  // choose only among the k likeliest tokens; 0: all
  // Applied after top_k: choose only among the likeliest tokens, as few as reach this total probability; 1:
  // all.
  double top_p = 1;
};

// Draws a token from softmax(logits / temperature), restricted by top_k and then by top_p, with the uniform
// random number u in [0, 1). The op `sample` computes the same. Ties are resolved in favor of the first
// token. NaN logits are never drawn. Throws Error if all logits are NaN, and for u or options out of range.
std::int32_t sample_token(std::span<const float> logits, const Sampling& sampling, double u);

// Returns the number u for a sequence's k-th new token. Sequences with the same seed have the same numbers.
double sampling_draw(std::uint64_t seed, std::uint64_t k);
// Throws Error that names an option out of range: a temperature that is negative or not finite in f32, a
// negative top_k, a top_p outside [0, 1].
void check_sampling(const Sampling& sampling);

// A continuation of a prompt.
struct Hypothesis {
  std::vector<std::int32_t> tokens;  // new tokens
  double score = 0;                  // log probability, Σ log softmax(logits)[token]
};

// The state of a beam search, which keeps the n likeliest continuations. The caller runs the model.
class BeamSearch {
 public:
  // Searches for n = `beams` continuations of `tokens` tokens each; one of `ends` ends a continuation
  // earlier. Throws Error unless both numbers are positive.
  BeamSearch(std::int64_t beams, std::int64_t tokens, std::vector<std::int32_t> ends);

  // The continuations that are being extended, likeliest first. At the beginning there is one, without
  // tokens.
  const std::vector<Hypothesis>& live() const { return live_; }
  // Provides the logits that follow live()[beam]. NaN counts as −∞. Throws Error for an index out of range,
  // for logits whose maximum is infinite, and if all are NaN.
  void offer(std::size_t beam, std::span<const float> logits);
  // Whether offer() has been called for all of live().
  bool complete() const { return offered_ == live_.size(); }
  // Extends the search by one token; call it when complete(). The n likeliest one-token extensions become
  // live(). If scores are equal, the earlier beam and the lower token win. Extensions that end do not count
  // among the n; the n likeliest ended ones are stored separately. For each new live continuation, returns
  // the index of the continuation that it extends, in the previous live(). Returns nothing when the search is
  // over.
  std::vector<std::size_t> advance();
  // Returns the likeliest continuations, at most n, when the search is over.
  std::vector<Hypothesis> results() const;

 private:
  struct Candidate {
    double score;
    std::size_t beam;
    std::int32_t token;
  };

  std::size_t beams_;
  std::int64_t tokens_;
  std::vector<std::int32_t> ends_;
  std::vector<Hypothesis> live_, ended_;
  std::vector<std::vector<Candidate>> candidates_;  // the likeliest extensions of each live continuation
  std::size_t offered_ = 0;
};

}  // namespace tg::nn
