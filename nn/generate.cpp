#include "nn/generate.h"

#include <algorithm>
#include <cmath>

#include "core/rng.h"
#include "ops/ops.h"

namespace tg {

namespace {
constexpr std::uint32_t sampling_node = 0xffffff01u;  // no node of a graph: draws apart from dropout's

Tensor logits_of(const Gpt& model, const Tensor& tokens, Precision precision) {
  const Autocast autocast(tokens.graph(), precision);
  return cast(model(tokens), f32);
}
}  // namespace

std::int32_t sample_token(std::span<const float> logits, double temperature, double u) {
  std::int32_t best = -1;
  for (std::size_t i = 0; i < logits.size(); ++i)
    if (!std::isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = static_cast<std::int32_t>(i);
  if (best < 0) throw Error("[sample] no logit is a number");
  if (temperature <= 0 || std::isinf(logits[best])) return best;
  const auto weight = [&](float logit) {
    return std::isnan(logit) ? 0.0 : std::exp((double{logit} - logits[best]) / temperature);
  };
  double total = 0;
  for (const float logit : logits) total += weight(logit);
  double left = u * total;
  std::int32_t drawn = best;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double w = weight(logits[i]);
    if (w == 0) continue;
    drawn = static_cast<std::int32_t>(i);
    left -= w;
    if (left < 0) break;
  }
  return drawn;
}

Generator::Generator(const Gpt& model, int threads, Precision precision)
    : context_(model.config().context),
      vocabulary_(model.config().vocabulary),
      window_(graph_.input("tokens", {1, context_}, i32)),
      logits_(logits_of(model, window_, precision)),
      program_(compile(graph_, {logits_}, {.threads = threads, .tf32 = precision == Precision::tf32})) {}

void Generator::extend(std::vector<std::int32_t>& tokens, std::int64_t count, double temperature,
                       std::uint64_t seed) {
  if (tokens.empty()) throw Error("[generate] the text to go on from is empty");
  // Positions after the last token are padding: the mask keeps them from what comes before.
  std::vector<std::int32_t> window(static_cast<std::size_t>(context_));
  for (std::int64_t k = 0; k < count; ++k) {
    const auto used = std::min<std::int64_t>(context_, static_cast<std::int64_t>(tokens.size()));
    std::fill(std::copy(tokens.end() - used, tokens.end(), window.begin()), window.end(), 0);
    program_.run({{window_, window}});
    const Array logits = program_.fetch(logits_);
    const std::span<const float> last(logits.data<float>() + (used - 1) * vocabulary_,
                                      static_cast<std::size_t>(vocabulary_));
    const PhiloxBlock words = philox({}, node_key(seed, static_cast<std::uint64_t>(k), sampling_node));
    tokens.push_back(sample_token(last, temperature, uniform(words[0], words[1])));
  }
}

}  // namespace tg
