#include "io/models/gguf_rules.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "io/models/hf_config.h"

namespace tg::io {

namespace {

// llama.cpp's 1 + 0.1·ln(factor). Unlike yarn_growth(), it is less than 1 for factors below 1.
double log_growth(double factor, double mscale = 1) {
  return 1 + 0.1 * mscale * std::log(factor);
}

// The weight of the scaled frequency in pair i [ggml, rope_yarn]. Uses the default beta_fast and beta_slow,
// because llama.cpp does not read these keys for the supported models.
double yarn_share(std::size_t i, std::int64_t d, double theta, double original) {
  const double width = static_cast<double>(d);
  const auto pair_of = [&](double rotations) {
    return width * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  const double low = std::max(0.0, std::floor(pair_of(32))),
               high = std::min(width - 1, std::ceil(pair_of(1)));
  return std::clamp((static_cast<double>(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
}

}  // namespace

GgufRotation gguf_rotation(const GgufRope& keys, std::int64_t d, double theta) {
  GgufRotation r{.frequencies = nn::RopeScaling{}.frequencies(d, theta, 0)};
  const double factor = keys.type == "none" ? 1 : keys.factor;
  const bool is_yarn = keys.type == "yarn";
  for (std::size_t i = 0; i < r.frequencies.size(); ++i) {
    double& omega = r.frequencies[i];
    if (i < keys.divisors.size()) omega /= static_cast<double>(keys.divisors[i]);
    const double share = is_yarn ? yarn_share(i, d, theta, keys.original) : 1;
    omega = (1 - share) * omega + share * omega / factor;
  }
  // The factor of sine and cosine in llama.cpp's context. YaRN's rotation multiplies it by 1 + 0.1·ln(factor)
  // again.
  double of_context = keys.attn_factor;
  if (is_yarn) {
    if (keys.log_multiplier == 0) of_context *= yarn_growth(factor, 1);
    of_context /= log_growth(factor);
  }
  r.magnitude = is_yarn ? of_context * log_growth(factor) : of_context;
  r.window_magnitude = of_context;
  r.score_scale = std::pow(of_context * log_growth(factor) * log_growth(factor, 10 * keys.log_multiplier), 2);
  return r;
}

GgufRope gguf_rope_for(const nn::RopeScaling& s, double score_scale, bool is_deepseek) {
  GgufRope keys;
  if (s.type != "linear" && s.type != "yarn") return keys;
  const bool is_yarn = s.type == "yarn";
  keys.type = s.type, keys.factor = s.factor;
  if (is_yarn) keys.original = static_cast<double>(std::llround(std::min(s.first_context, 1e9)));
  const double usual = is_yarn ? yarn_growth(s.factor, 1) : 1;
  keys.attn_factor = is_same_in_gguf(s.magnitude, usual) ? 1 : s.magnitude / usual;
  if (!is_deepseek) return keys;
  // √score_scale = magnitude · (1 + ln(factor)·log_multiplier). For linear scaling, this is also multiplied
  // by 1 + 0.1·ln(factor).
  const double grown = is_yarn ? s.magnitude : s.magnitude * log_growth(s.factor);
  const double rest = std::sqrt(score_scale) / grown;
  if (is_same_in_gguf(rest, 1) || s.factor == 1) return keys;
  keys.log_multiplier = (rest - 1) / std::log(s.factor);
  if (is_yarn) keys.attn_factor = is_same_in_gguf(s.magnitude, 1) ? 1 : s.magnitude;
  return keys;
}

bool is_same_in_gguf(double a, double b) {
  return std::abs(a - b) <= 1e-6 * std::max(std::abs(a), std::abs(b));
}

}  // namespace tg::io
