// The distributions of random numbers, as functions of Philox words (core/base/rng.h), and arrays of random
// numbers on the host. Normal numbers are computed only from additions, multiplications, divisions and square
// roots in f64, without contraction. They are bitwise identical for every compiler, instruction set and
// device.
#pragma once

#include <bit>
#include <concepts>

#include <tilegrad/core/base/array.h>
#include <tilegrad/core/base/rng.h>

namespace tg {

namespace detail {
// Evaluates a polynomial of x by Horner's rule. The coefficients start with the highest power.
template <std::same_as<double>... Real>
[[gnu::always_inline]] constexpr double polynomial(double x, double sum, Real... coefficients) {
  ((sum = sum * x + coefficients), ...);
  return sum;
}
}  // namespace detail

// log x for x in (0, 1], to within 3 units in the last place of f64. With x = 2^e·m and m in [√½, √2), log m
// = 2·artanh s, where s = (m - 1)/(m + 1).
[[gnu::always_inline]] constexpr double log_of_unit(double x) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t shifted = bits - 0x3fe6a09e667f3bcdu;  // the bits of √½
  const auto e = static_cast<std::int32_t>(static_cast<std::int64_t>(shifted) >> 52);
  const double m = std::bit_cast<double>(bits - (shifted & 0xfff0000000000000u));
  const double s = (m - 1) / (m + 1), t = s * s;
  const double p = detail::polynomial(t, 1. / 21, 1. / 19, 1. / 17, 1. / 15, 1. / 13, 1. / 11, 1. / 9, 1. / 7,
                                      1. / 5, 1. / 3);
  return e * 0.69314718055994530942 + (2 * s + 2 * s * t * p);
}

// Box-Muller transform: from two words, returns two independent standard normal numbers √(-2 log u)·cos 2πv
// and √(-2 log u)·sin 2πv, with u = (first + ½)/2^32 and v = second/2^32. It is constexpr because device code
// can call only constexpr functions. It is a template because Clang rejects a plain constexpr function that
// calls a square root.
template <std::same_as<double> Real>
[[gnu::always_inline]] constexpr void normal_pair(std::uint32_t first, std::uint32_t second, Real& by_cos,
                                                  Real& by_sin) {
  const double radius = __builtin_sqrt(-2 * log_of_unit((first + 0.5) * 0x1p-32));
  // The angle in quarter turns, 4v = q + r with |r| ≤ ½.
  const std::uint32_t q = (second + 0x20000000u) >> 30;
  const double r = static_cast<std::int32_t>(second - (q << 30)) * 0x1p-30 * 1.57079632679489661923;
  const double t = r * r;
  // The power series of the sine up to r^15, and of the cosine up to r^16.
  const double s = r + r * t *
                           detail::polynomial(t, -1. / 1307674368000, 1. / 6227020800, -1. / 39916800,
                                              1. / 362880, -1. / 5040, 1. / 120, -1. / 6);
  const double c = 1 + t * detail::polynomial(t, 1. / 20922789888000, -1. / 87178291200, 1. / 479001600,
                                              -1. / 3628800, 1. / 40320, -1. / 720, 1. / 24, -1. / 2);
  const double near = q & 1 ? s : c, other = q & 1 ? c : s;  // cos and sin of the angle, without signs
  by_cos = radius * ((q + 1) & 2 ? -near : near);
  by_sin = radius * (q & 2 ? -other : other);
}

// Uniform numbers of a dtype in [low, high), computed as low + (high − low)·u in f64 for u in [0, 1). If the
// rounded number would be outside of the interval, the result is the smallest or largest number of the dtype
// in the interval.
struct UniformRange {
  // x = unit·(low + width·u). unit is 2 if high − low overflows f64, otherwise 1.
  double low, width, unit;
  double first, last;  // smallest and largest number of the dtype in [low, high)

  // The number for u in [0, 1).
  [[gnu::always_inline]] constexpr double at(double u) const {
    const double x = unit * (low + width * u);
    return x < first ? first : x > last ? last : x;
  }
};
// Prepares uniform numbers in [low, high). If the ends are equal, all numbers are the one nearest to `low` in
// the dtype. Throws Error if an end is not finite, `high` is below `low`, or the dtype has no number in the
// interval, and DTypeError unless the dtype is floating.
UniformRange uniform_range(DType dtype, double low, double high);

// Returns the numbers that the op `normal` draws with this key: mean + std·n, with |n| below 6.77. They are
// computed in f64 and rounded once to the dtype. Throws Error unless `mean` is finite and `std` is finite and
// not negative.
Array normal_array(const Shape& shape, DType dtype, double mean, double std, std::uint64_t key);
// Returns the numbers that the op `uniform` draws with this key: uniform_range(dtype, low, high).at(u). They
// are computed in f64 and rounded once to the dtype. Throws the errors of uniform_range().
Array uniform_array(const Shape& shape, DType dtype, double low, double high, std::uint64_t key);

}  // namespace tg
