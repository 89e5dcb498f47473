#include <tilegrad/nn/generation/sampling.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include <tilegrad/core/base/range.h>

namespace tg::nn {

BeamSearch::BeamSearch(std::int64_t beams, std::int64_t tokens, std::vector<std::int32_t> ends)
    : beams_(static_cast<std::size_t>(beams)),
      tokens_(tokens),
      ends_(std::move(ends)),
      live_(1),
      candidates_(1) {
  check_options("beam search",
                {{"beams", beams, Range::whole_from(1)}, {"tokens", tokens, Range::whole_from(1)}});
}

void BeamSearch::offer(std::size_t beam, std::span<const float> logits) {
  if (beam >= live_.size())
    throw Error("[beam search] beam " + std::to_string(beam) + " of " + std::to_string(live_.size()));
  constexpr double nothing = -std::numeric_limits<double>::infinity();
  const auto value = [&](float x) { return std::isnan(x) ? nothing : double{x}; };
  double most = nothing, sum = 0;
  for (const float x : logits) most = std::max(most, value(x));
  if (!std::isfinite(most)) throw Error("[beam search] no token has a probability");
  for (const float x : logits) sum += std::exp(value(x) - most);
  const double log_sum = most + std::log(sum);
  auto& list = candidates_[beam];
  if (list.empty()) ++offered_;
  list.clear();
  for (std::size_t t = 0; t < logits.size(); ++t)
    if (const double p = value(logits[t]); p > nothing)
      list.push_back({live_[beam].score + (p - log_sum), beam, static_cast<std::int32_t>(t)});
  // Keeps enough candidates for `beams_` continuations, even if each end token is among the candidates.
  const std::size_t kept = std::min(list.size(), beams_ + ends_.size());
  const auto first = [](const Candidate& a, const Candidate& b) {
    return a.score != b.score ? a.score > b.score : a.token < b.token;
  };
  std::partial_sort(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(kept), list.end(), first);
  list.resize(kept);
}

std::vector<std::size_t> BeamSearch::advance() {
  std::vector<Candidate> all;
  for (auto& list : candidates_) all.insert(all.end(), list.begin(), list.end());
  std::ranges::stable_sort(all, std::greater(), &Candidate::score);
  std::vector<Hypothesis> next;
  std::vector<std::size_t> parents;
  for (const Candidate& c : all) {
    if (next.size() == beams_) break;
    Hypothesis h = live_[c.beam];
    h.tokens.push_back(c.token), h.score = c.score;
    if (std::ranges::find(ends_, c.token) != ends_.end()) {
      ended_.push_back(std::move(h));
    } else {
      next.push_back(std::move(h)), parents.push_back(c.beam);
    }
  }
  std::ranges::stable_sort(ended_, std::greater(), &Hypothesis::score);
  ended_.resize(std::min(ended_.size(), beams_));
  live_ = std::move(next);
  candidates_.assign(live_.size(), {});
  offered_ = 0;
  // A continuation is never likelier than its prefix.
  const bool is_over = live_.empty() || std::ssize(live_[0].tokens) == tokens_ ||
                       (ended_.size() == beams_ && ended_.back().score >= live_[0].score);
  return is_over ? std::vector<std::size_t>{} : parents;
}

std::vector<Hypothesis> BeamSearch::results() const {
  std::vector<Hypothesis> all = ended_;
  // If the search ended early, the n ended continuations are at least as likely as the live continuations.
  all.insert(all.end(), live_.begin(), live_.end());
  std::ranges::stable_sort(all, std::greater(), &Hypothesis::score);
  all.resize(std::min(all.size(), beams_));
  return all;
}

}  // namespace tg::nn
