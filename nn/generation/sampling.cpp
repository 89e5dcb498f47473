#include <tilegrad/nn/generation/sampling.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/base/rng.h>

namespace tg::nn {

namespace {

// Sets the weights of all but the likeliest tokens to 0.
void cut(std::vector<double>& weights, const Sampling& s) {
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return weights[a] > weights[b]; });
  std::size_t kept = order.size();
  if (s.top_k > 0) kept = std::min(kept, static_cast<std::size_t>(s.top_k));
  double total = 0, reached = 0;
  for (std::size_t i = 0; i < kept; ++i) total += weights[order[i]];
  std::size_t enough = 0;
  while (enough < kept && (enough == 0 || reached < s.top_p * total)) reached += weights[order[enough++]];
  for (std::size_t i = enough; i < order.size(); ++i) weights[order[i]] = 0;
}

constexpr std::uint32_t sampling_node = 0xffffff01u;  // no node of a graph: draws apart from dropout's

}  // namespace

double sampling_draw(std::uint64_t seed, std::uint64_t k) {
  const PhiloxBlock words = philox({}, node_key(seed, k, sampling_node));
  return uniform(words[0], words[1]);
}

void check_sampling(const Sampling& s) {
  if (!(s.temperature >= 0) || s.top_k < 0 || !(s.top_p >= 0 && s.top_p <= 1))
    throw Error(
        "[sample] expected a temperature and a top_k that are not negative and a top_p of 0 to 1, got " +
        std::to_string(s.temperature) + ", " + std::to_string(s.top_k) + " and " + std::to_string(s.top_p));
}

std::int32_t sample_token(std::span<const float> logits, const Sampling& s, double u) {
  std::int32_t best = -1;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (!std::isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = static_cast<std::int32_t>(i);
  if (best < 0) throw Error("[sample] every logit is NaN");
  if (s.temperature <= 0 || std::isinf(logits[best])) return best;
  std::vector<double> weights;
  for (const float logit : logits)
    weights.push_back(std::isnan(logit) ? 0.0 : std::exp((double{logit} - logits[best]) / s.temperature));
  if (s.top_k > 0 || s.top_p < 1) cut(weights, s);
  double left = u * std::accumulate(weights.begin(), weights.end(), 0.0);
  std::int32_t drawn = best;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    drawn = static_cast<std::int32_t>(i);
    left -= weights[i];
    if (left < 0) break;
  }
  return drawn;
}

}  // namespace tg::nn
