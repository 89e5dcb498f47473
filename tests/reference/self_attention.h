// Computes self-attention softmax(QKᵀ)V, row by row and without the scale [Ye, Online Softmax §4]. There are
// three forms: multi-pass, one-pass, and one-pass over tiles. Q [L, d], K [T, d], V [T, D] → O [L, D]; T ≥ 1.
#pragma once

#include "tests/reference/matrix.h"

namespace tg::reference {

// [Ye, Online Softmax §4, eq. 11-12]. First computes the logits, their maximum and the denominator, then the
// output.
inline Matrix multi_pass_attention(const Matrix& Q, const Matrix& K, const Matrix& V) {
  const Index L = Q.rows, N = K.rows, D = V.cols;
  Matrix O(L, D);
  for (Index k = 0; k < L; ++k) {
    Vector x(N);
    double m = -kInfinity, d = 0;
    for (Index i = 0; i < N; ++i) {
      x[i] = dot(Q, k, K, i);
      const double m_new = std::max(m, x[i]);
      d = d * std::exp(m - m_new) + std::exp(x[i] - m_new);
      m = m_new;
    }
    for (Index i = 0; i < N; ++i) {
      const double a_i = std::exp(x[i] - m) / d;               // (11)
      for (Index c = 0; c < D; ++c) O(k, c) += a_i * V(i, c);  // (12)
    }
  }
  return O;
}

// [Ye, Online Softmax §4, eq. 14]: o'_i = o'_{i-1} d'_{i-1} exp(m_{i-1} − m_i) / d'_i + exp(x_i − m_i) / d'_i
// V[i, :].
inline Matrix one_pass_attention(const Matrix& Q, const Matrix& K, const Matrix& V) {
  const Index L = Q.rows, N = K.rows, D = V.cols;
  Matrix O(L, D);
  for (Index k = 0; k < L; ++k) {
    double m = -kInfinity, d = 0;
    for (Index i = 0; i < N; ++i) {
      const double x_i = dot(Q, k, K, i);
      const double m_new = std::max(m, x_i);
      const double d_new = d * std::exp(m - m_new) + std::exp(x_i - m_new);
      for (Index c = 0; c < D; ++c)
        O(k, c) = O(k, c) * (d * std::exp(m - m_new) / d_new) + std::exp(x_i - m_new) / d_new * V(i, c);
      m = m_new;
      d = d_new;
    }
  }
  return O;
}

// [Ye, Online Softmax §4], FlashAttention (Tiling). The one-pass form with b logits per step. b need not
// divide T.
inline Matrix tiled_one_pass_attention(const Matrix& Q, const Matrix& K, const Matrix& V, Index b) {
  const Index L = Q.rows, N = K.rows, D = V.cols;
  Matrix O(L, D);
  for (Index k = 0; k < L; ++k) {
    double m = -kInfinity, d = 0;
    for (Index begin = 0; begin < N; begin += b) {
      const Index end = std::min(begin + b, N);
      Vector x;  // [b], the tile's logits
      for (Index j = begin; j < end; ++j) x.push_back(dot(Q, k, K, j));
      const double m_local = *std::max_element(x.begin(), x.end());
      const double m_new = std::max(m, m_local);
      double d_new = d * std::exp(m - m_new);
      for (double x_j : x) d_new += std::exp(x_j - m_new);
      for (Index c = 0; c < D; ++c) {
        O(k, c) *= d * std::exp(m - m_new) / d_new;
        for (Index j = begin; j < end; ++j) O(k, c) += std::exp(x[j - begin] - m_new) / d_new * V(j, c);
      }
      m = m_new;
      d = d_new;
    }
  }
  return O;
}

}  // namespace tg::reference
