// Choosing the next token from a model's logits: by sampling, or in beam search.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace tg::nn {

struct Sampling {
  double temperature = 1;  // 0: the most likely token, the first of equals
  std::int64_t top_k = 0;  // only the k likeliest; 0: all
  double top_p = 1;        // of these, only the likeliest whose probabilities first add up to this
};

// The op `sample` in plain C++. A token drawn from softmax(logits / temperature), restricted to top_k and
// then to top_p, by the uniform number u in [0, 1). Ties go to the first. Logits that are NaN are never
// drawn; throws Error if all are NaN, and for a u or a setting out of its range.
std::int32_t sample_token(std::span<const float> logits, const Sampling& sampling, double u);

// The u of a sequence's k-th new token: sequences with the same seed draw the same numbers.
double sampling_draw(std::uint64_t seed, std::uint64_t k);
// Throws Error that names the setting out of its range: a temperature that is negative or not finite in f32,
// a negative top_k, a top_p outside [0, 1].
void check_sampling(const Sampling& sampling);

// A continuation of a prompt and the logarithm of its probability, Σ log softmax(logits)[token].
struct Hypothesis {
  std::vector<std::int32_t> tokens;
  double score = 0;
};

// Beam search: of all continuations that have been looked at, the n likeliest go on. What is chosen; the runs
// of the model are the caller's.
class BeamSearch {
 public:
  // n = `beams` continuations of `tokens` tokens each, or less where one of `ends` comes. Both sizes
  // positive.
  BeamSearch(std::int64_t beams, std::int64_t tokens, std::vector<std::int32_t> ends);

  // Those that go on, likeliest first; at the beginning one without tokens.
  const std::vector<Hypothesis>& live() const { return live_; }
  // The logits after one of them. Throws Error for a number that is none of theirs, and if the
  // largest logit is infinite or all are NaN; NaN otherwise counts as −∞.
  void offer(std::size_t beam, std::span<const float> logits);
  bool complete() const { return offered_ == live_.size(); }  // logits of all live ones were offered
  // Once complete: the n likeliest among all continuations of the live ones by a token become the live ones.
  // Ties go to the earlier beam and the lower token. Continuations that end do not count among the n: the n
  // likeliest of them are kept apart. Returns the beam that each live one continues, by its former number;
  // nothing when the search is over: then results() has the likeliest of all, at most n.
  std::vector<std::size_t> advance();
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
  std::vector<std::vector<Candidate>> candidates_;  // of each live one, the likeliest
  std::size_t offered_ = 0;
};

}  // namespace tg::nn
