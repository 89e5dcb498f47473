#include <tilegrad/nn/generation/sampling.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include <tilegrad/core/base/range.h>
#include "ops/sample.h"

namespace tg::nn {

namespace {

// Sets the weights of tokens that top_k and top_p exclude to 0.
void cut(std::span<const float> logits, std::vector<std::uint64_t>& weights, const Sampling& s) {
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return order_of(logits[a]) > order_of(logits[b]); });
  std::size_t kept = order.size();
  if (s.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(s.top_k));
  if (s.top_p < 1) {
    std::uint64_t total = 0, reached = 0;
    for (std::size_t i = 0; i < kept; ++i) total += weights[order[i]];
    const std::uint64_t needed = kept_weight(total, s.top_p);
    std::size_t enough = 0;
    while (reached < needed) reached += weights[order[enough++]];
    kept = enough;
  }
  for (std::size_t i = kept; i < order.size(); ++i) weights[order[i]] = 0;
}

}  // namespace

double sampling_draw(std::uint64_t seed, std::uint64_t k) {
  return static_cast<double>(sample_fraction(seed, k)) * 0x1p-64;
}

void check_sampling(const Sampling& s) {
  check_options("sample", {{"temperature", s.temperature, sampling_ranges::temperature},
                           {"top_k", s.top_k, sampling_ranges::top_k},
                           {"top_p", s.top_p, sampling_ranges::top_p}});
}

std::int32_t sample_token(std::span<const float> logits, const Sampling& s, double u) {
  check_sampling(s);
  check_options("sample", {{"u", u, sampling_ranges::draw}});
  std::int32_t best = -1;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (!std::isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = static_cast<std::int32_t>(i);
  if (best < 0) throw Error("[sample] every logit is NaN");
  if (!is_drawn(s.temperature) || std::isinf(logits[best])) return best;
  std::vector<std::uint64_t> weights;
  for (const float logit : logits)
    weights.push_back(sample_weight(logit, logits[best], 1 / s.temperature, sample_bits(logits.size())));
  if (s.top_k > 0 || s.top_p < 1) cut(logits, weights, s);
  const std::uint64_t total = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  std::uint64_t left = share_of(total, static_cast<std::uint64_t>(u * 0x1p64));
  std::size_t i = 0;
  for (; left >= weights[i]; ++i) left -= weights[i];
  return static_cast<std::int32_t>(i);
}

}  // namespace tg::nn
