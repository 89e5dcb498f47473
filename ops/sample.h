// Draws a token from logits. The result is the same on every backend and in nn/generation/sampling.h. A
// token's weight e^((logit − best)/temperature) is rounded to an integer. Sums of integers are exact in any
// order, so a token depends only on the logits and the key. Code that uses this header must be compiled
// without contraction of products and sums (FMA). The weights are then bitwise identical everywhere.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include <tilegrad/core/base/random.h>
#include <tilegrad/core/base/range.h>

namespace tg {

// The ranges of options that every sampler accepts: the op `sample`, sample_token, Generator and Engine.
namespace sampling_ranges {
inline constexpr Range temperature = Range::at_least(0), top_k = Range::whole_from(0),
                       top_p = Range::between(0, 1), draw = Range::from_below(0, 1);
}  // namespace sampling_ranges

// The stream of token draws. No graph node has this number, so draws are independent of dropout.
inline constexpr std::uint32_t sample_stream = 0xffffff01u;

// The uniform random number in [0, 1) for token k under `seed`, in units of 2^-64. It has 53 random bits.
[[gnu::always_inline]] constexpr std::uint64_t sample_fraction(std::uint64_t seed, std::uint64_t k) {
  const PhiloxBlock words = philox({}, node_key(seed, k, sample_stream));
  return (std::uint64_t{words[0]} << 32 | words[1]) >> 11 << 11;
}

// Returns ⌊a·b / 2^64⌋. a is a total weight, and b is a fraction in units of 2^-64.
[[gnu::always_inline]] constexpr std::uint64_t share_of(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
  const std::uint64_t middle = a1 * b0 + (a0 * b0 >> 32);
  return a1 * b1 + (middle >> 32) + ((a0 * b1 + (middle & 0xffffffffu)) >> 32);
}

// Returns e^x for −44 ≤ x ≤ 0 with a relative error of at most 2^-51. It computes 2^k·e^r with |r| ≤ ½·log 2,
// and e^r by its series up to r^12.
[[gnu::always_inline]] constexpr double exp_of_negative(double x) {
  const int k = static_cast<int>(x * 1.44269504088896340736 - 0.5);  // truncation rounds x/log 2 to nearest
  // log 2 is split into two parts. The product of k and the first part is exact.
  const double r = x - k * 0.693147180369123816490 - k * 1.90821492927058770002e-10;
  const double p = detail::polynomial(r, 1. / 479001600, 1. / 39916800, 1. / 3628800, 1. / 362880, 1. / 40320,
                                      1. / 5040, 1. / 720, 1. / 120, 1. / 24, 1. / 6, 1. / 2, 1., 1.);
  return p * std::bit_cast<double>(static_cast<std::uint64_t>(1023 + k) << 52);
}

// Returns the exponent of the largest weight among n tokens, so that the sum of all weights is below 2^63.
// For the host only.
[[gnu::always_inline]] constexpr int sample_bits(std::uint64_t n) {
  return 63 - std::bit_width(n);
}

// Returns the weight of a logit that is at most `best`; 0 for NaN. `best` is finite. rate = 1/temperature.
[[gnu::always_inline]] constexpr std::uint64_t sample_weight(double logit, double best, double rate,
                                                             int bits) {
  const double below = logit - best, x = below == 0 ? 0 : below * rate;
  const bool counts = x >= -44;  // for smaller x the weight is less than half a unit
  const double unit = std::bit_cast<double>(static_cast<std::uint64_t>(1023 + bits) << 52);
  const double up =
      exp_of_negative(counts ? x : -44) * unit + 0.5;  // not negative, so truncation rounds to nearest
  const auto weight = static_cast<std::uint64_t>(up);
  return counts ? weight : 0;
}

// Whether the temperature is positive and has a finite inverse. If not, or if it is NaN, the most likely
// token is chosen.
[[gnu::always_inline]] constexpr bool is_drawn(double temperature) {
  return temperature > 0 && 1 / temperature <= std::numeric_limits<double>::max();
}

// Returns the minimum total weight of the tokens that top_p < 1 keeps.
[[gnu::always_inline]] constexpr std::uint64_t kept_weight(std::uint64_t total, double top_p) {
  const double least = top_p * static_cast<double>(total);
  if (!(least > 1)) return 1;
  const auto whole = static_cast<std::uint64_t>(least);
  const std::uint64_t up = static_cast<double>(whole) < least ? whole + 1 : whole;
  return up < total ? up : total;
}

// Maps a logit to an unsigned integer with the same order. NaN precedes all other logits, and −0 equals 0.
// Inverts all bits of negative numbers and the sign bit of other numbers, without a branch that depends on
// the logit.
[[gnu::always_inline]] constexpr std::uint32_t order_of(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x == 0 ? 0.f : x);
  const std::uint32_t order = u ^ ((0 - (u >> 31)) | 1u << 31);
  return x == x ? order : 0;
}
[[gnu::always_inline]] constexpr std::uint64_t order_of(double x) {
  const auto u = std::bit_cast<std::uint64_t>(x == 0 ? 0. : x);
  const std::uint64_t order = u ^ ((0 - (u >> 63)) | std::uint64_t{1} << 63);
  return x == x ? order : 0;
}

}  // namespace tg
