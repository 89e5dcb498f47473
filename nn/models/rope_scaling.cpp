#include <tilegrad/nn/models/rope_scaling.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include <tilegrad/core/base/range.h>
#include <tilegrad/ops/ops.h>

namespace tg::nn {

namespace {

double mixed(double omega, double scaled, double share) {
  return (1 - share) * omega + share * scaled;
}

double llama3(double omega, const RopeScaling& s) {
  const double wave = 2 * std::numbers::pi / omega, scaled = omega / s.factor;
  if (wave < s.first_context / s.high_frequency) return omega;
  if (wave > s.first_context / s.low_frequency) return scaled;
  const double kept = (s.first_context / wave - s.low_frequency) / (s.high_frequency - s.low_frequency);
  return mixed(omega, scaled, 1 - kept);
}

// The pair i, not rounded, that rotates so many times in the first context.
double pair_of(double rotations, double d, double theta, const RopeScaling& s) {
  return d * std::log(s.first_context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

void yarn(std::vector<double>& omega, double d, double theta, const RopeScaling& s) {
  double low = pair_of(s.beta_fast, d, theta, s), high = pair_of(s.beta_slow, d, theta, s);
  if (s.whole_pairs) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, d - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < omega.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    omega[i] = mixed(omega[i], omega[i] / s.factor, ramp);
  }
}

}  // namespace

void RopeScaling::check() const {
  const auto refuse = [](const std::string& what) { throw Error("[model] rope scaling: " + what); };
  if (type != "none" && type != "linear" && type != "llama3" && type != "yarn" && type != "longrope")
    refuse("got type '" + type + "', expected none, linear, llama3, yarn or longrope");
  constexpr Range positive = Range::above_to(0, 1e18);
  const bool has_context = type == "llama3" || type == "yarn" || type == "longrope";
  check_options("rope scaling", {{"factor", factor, positive},
                                 {"magnitude", magnitude, positive},
                                 {"first_context", first_context, has_context ? positive : Range()},
                                 {"low_frequency", low_frequency, positive},
                                 {"high_frequency", high_frequency, positive},
                                 {"beta_fast", beta_fast, positive},
                                 {"beta_slow", beta_slow, positive}});
  if (type == "llama3" && !(low_frequency < high_frequency))
    refuse("expected a low frequency below the high one, got " + std::to_string(low_frequency) + " and " +
           std::to_string(high_frequency));
  for (const double f : short_factors) check_options("rope scaling", {{"short_factor", f, positive}});
  for (const double f : long_factors) check_options("rope scaling", {{"long_factor", f, positive}});
}

void RopeScaling::check(std::int64_t d) const {
  check();
  if (type != "longrope") return;
  for (const std::vector<double>* factors : {&short_factors, &long_factors})
    if (std::ssize(*factors) * 2 != d)
      throw ShapeError("[model] rope scaling: got " + std::to_string(factors->size()) +
                       " factors, expected one for each of " + std::to_string(d / 2) + " pairs");
}

std::int64_t RopeScaling::short_length(std::int64_t context) const {
  if (type != "longrope" || !(first_context >= 1 && first_context < static_cast<double>(context))) return 0;
  return static_cast<std::int64_t>(first_context);
}

std::vector<double> RopeScaling::frequencies(std::int64_t d, double theta, std::int64_t context) const {
  check();
  std::vector<double> omega = rope_frequencies(d, theta);
  if (type == "linear")
    for (double& w : omega) w /= factor;
  if (type == "llama3")
    for (double& w : omega) w = llama3(w, *this);
  if (type == "yarn") yarn(omega, static_cast<double>(d), theta, *this);
  if (type == "longrope") {
    check(d);
    const bool is_long = static_cast<double>(context) > first_context;
    const std::vector<double>& factors = is_long ? long_factors : short_factors;
    for (std::size_t i = 0; i < omega.size(); ++i) omega[i] /= factors[i];
  }
  return omega;
}

}  // namespace tg::nn
