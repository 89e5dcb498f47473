// Computes softmax in three passes, and in two passes with the online normalizer [Ye, Online Softmax §2, §3].
// Also computes the backward pass [Stratos, Efficient Attention §C.1].
#pragma once

#include "tests/reference/matrix.h"

namespace tg::reference {

// [Ye, Online Softmax §2, eq. 7-9]: x [N] → a [N].
inline Vector three_pass_softmax(const Vector& x) {
  double m = -kInfinity, d = 0;
  for (double x_i : x) m = std::max(m, x_i);       // (7)
  for (double x_i : x) d = d + std::exp(x_i - m);  // (8)
  Vector a;
  for (double x_i : x) a.push_back(std::exp(x_i - m) / d);  // (9)
  return a;
}

// [Ye, Online Softmax §3, eq. 10]: maximum and denominator in one pass, d'_i = d'_{i-1} exp(m_{i-1} − m_i) +
// exp(x_i − m_i).
inline Vector online_softmax(const Vector& x) {
  double m = -kInfinity, d = 0;
  for (double x_i : x) {
    const double m_new = std::max(m, x_i);
    d = d * std::exp(m - m_new) + std::exp(x_i - m_new);
    m = m_new;
  }
  Vector a;
  for (double x_i : x) a.push_back(std::exp(x_i - m) / d);
  return a;
}

// [Stratos, Efficient Attention §C.1, eq. 2]: z_x ← z_x + p ⊛ z_p − (p ⊛ z_p).sum() p, for p = softmax(x).
inline void softmax_backward(const Vector& p, const Vector& z_p, Vector& z_x) {
  double sum = 0;
  for (std::size_t j = 0; j < p.size(); ++j) sum += p[j] * z_p[j];
  for (std::size_t i = 0; i < p.size(); ++i) z_x[i] += p[i] * z_p[i] - sum * p[i];
}

}  // namespace tg::reference
