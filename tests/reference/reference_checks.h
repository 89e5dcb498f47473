// Defines comparisons for the tests in tests/reference. Each returns a GoogleTest result with the first
// position that differs.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <sstream>
#include <string>

#include "tests/reference/matrix.h"

namespace tg::reference {

// Returns entries that are uniform in [-1, 1). They are the same on every machine.
inline Vector random_vector(Index n, std::uint64_t seed) {
  std::mt19937_64 bits(seed);
  Vector x(n);
  for (double& x_i : x) x_i = static_cast<double>(bits() >> 11) * 0x1p-52 - 1;
  return x;
}

inline Matrix random_matrix(Index rows, Index cols, std::uint64_t seed) {
  return {rows, cols, random_vector(rows * cols, seed)};
}

// got − expected| ≤ tolerance · max(1, max |expected|) for all entries. Equal infinities match; NaN never
// matches.
inline ::testing::AssertionResult close(const Vector& got, const Vector& expected, double tolerance = 1e-12) {
  if (got.size() != expected.size())
    return ::testing::AssertionFailure() << "sizes differ: " << got.size() << " and " << expected.size();
  double size = 1;
  for (double w : expected)
    if (std::isfinite(w)) size = std::max(size, std::abs(w));
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (got[i] != expected[i] && !(std::abs(got[i] - expected[i]) <= tolerance * size))
      return ::testing::AssertionFailure()
             << "at " << i << ": got " << got[i] << ", expected " << expected[i] << ", apart "
             << std::abs(got[i] - expected[i]) << " > " << tolerance * size;
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult close(const Matrix& got, const Matrix& expected, double tolerance = 1e-12) {
  if (got.rows != expected.rows || got.cols != expected.cols)
    return ::testing::AssertionFailure() << "shapes differ";
  return close(got.data, expected.data, tolerance);
}

inline ::testing::AssertionResult close(const Gradients& got, const Gradients& expected,
                                        double tolerance = 1e-12) {
  const auto q = close(got.z_Q, expected.z_Q, tolerance);
  if (!q) return ::testing::AssertionFailure() << "z_Q " << q.message();
  const auto k = close(got.z_K, expected.z_K, tolerance);
  if (!k) return ::testing::AssertionFailure() << "z_K " << k.message();
  const auto v = close(got.z_V, expected.z_V, tolerance);
  if (!v) return ::testing::AssertionFailure() << "z_V " << v.message();
  return ::testing::AssertionSuccess();
}

inline bool all_finite(const Vector& x) {
  return std::all_of(x.begin(), x.end(), [](double x_i) { return std::isfinite(x_i); });
}

// Returns whether x rounds to a printed number, which is then within half a unit of the last decimal. If the
// number is printed without decimals, x must match exactly.
inline bool rounds_to(double x, const std::string& printed) {
  const auto point = printed.find('.');
  const double half_unit =
      point == std::string::npos ? 0 : 0.5 * std::pow(10.0, -double(printed.size() - point - 1));
  return std::abs(x - std::stod(printed)) <= half_unit + 1e-13;
}

// Compares a vector, or the rows of a matrix, with printed numbers. Blanks separate the numbers.
inline ::testing::AssertionResult prints_as(const Vector& x, const std::string& printed) {
  std::istringstream words(printed);
  std::string word;
  std::size_t n = 0;
  for (; words >> word; ++n) {
    if (n == x.size()) return ::testing::AssertionFailure() << "more than " << n << " numbers are printed";
    if (!rounds_to(x[n], word))
      return ::testing::AssertionFailure() << "at " << n << ": " << x[n] << " does not print as " << word;
  }
  if (n != x.size()) return ::testing::AssertionFailure() << n << " numbers are printed, not " << x.size();
  return ::testing::AssertionSuccess();
}

inline ::testing::AssertionResult prints_as(const Matrix& x, const std::string& printed) {
  return prints_as(x.data, printed);
}

// Computes ∂f/∂x as (f(x−2h) − 8f(x−h) + 8f(x+h) − f(x+2h)) / 12h. f reads x by reference. With h = 1e-3, the
// truncation error is about 3e-14 f⁽⁵⁾ and the rounding error about 3e-13 |f|. So a tolerance of 1e-9 is
// sufficient for f⁽⁵⁾ in the thousands.
inline Vector four_point_gradient(Vector& x, const std::function<double()>& f) {
  const double h = 1e-3;
  Vector gradient;
  for (double& x_i : x) {
    const double at = x_i;
    const auto shifted = [&](double steps) { return x_i = at + steps * h, f(); };
    gradient.push_back((shifted(-2) - 8 * shifted(-1) + 8 * shifted(1) - shifted(2)) / (12 * h));
    x_i = at;
  }
  return gradient;
}
inline constexpr double kDifferenceTolerance = 1e-9;

// Returns the loss Σ x ⊛ z. Its gradient with respect to x is z.
inline double weighted_sum(const Vector& x, const Vector& z) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += x[i] * z[i];
  return sum;
}

}  // namespace tg::reference
