// Reference implementation of Muon's iterations.
#pragma once

#include "tests/support/op_testing.h"

namespace tg::testing {

// Computes y ← a·y + (b·A + c·A²)·y with A = y·yᵀ, with loops in doubles. x has shape [r, c].
inline Vector plain_orthogonalized(const Vector& x, std::size_t r, std::size_t c, int iterations) {
  double norm = 0;
  for (const double v : x) norm += v * v;
  Vector y = x;
  for (double& v : y) v /= std::sqrt(norm) + 1e-7;
  for (int n = 0; n < iterations; ++n) {
    Vector s(r * r, 0), f(r * r, 0), next(r * c, 0);
    for (std::size_t i = 0; i < r; ++i)
      for (std::size_t j = 0; j < r; ++j)
        for (std::size_t k = 0; k < c; ++k) s[i * r + j] += y[i * c + k] * y[j * c + k];
    for (std::size_t i = 0; i < r; ++i)
      for (std::size_t j = 0; j < r; ++j) {
        f[i * r + j] = -4.7750 * s[i * r + j];
        for (std::size_t k = 0; k < r; ++k) f[i * r + j] += 2.0315 * s[i * r + k] * s[k * r + j];
      }
    for (std::size_t i = 0; i < r; ++i)
      for (std::size_t j = 0; j < c; ++j) {
        next[i * c + j] = 3.4445 * y[i * c + j];
        for (std::size_t k = 0; k < r; ++k) next[i * c + j] += f[i * r + k] * y[k * c + j];
      }
    y = next;
  }
  return y;
}

}  // namespace tg::testing
