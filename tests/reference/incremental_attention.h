// Computes incremental attention over chunks of keys, without subtracting a maximum and without the scale
// [Stratos, FlashAttention §1.1, eq. 2].
#pragma once

#include "tests/reference/matrix.h"

namespace tg::reference {

// Q [L, d], K [T, d], V [T, D] → O [L, D]. The chunk size Λ need not divide T. The result overflows for
// logits above about 709, so stable forms are needed.
inline Matrix incremental_attention(const Matrix& Q, const Matrix& K, const Matrix& V, Index chunk) {
  const Index L = Q.rows, T = K.rows, D = V.cols;
  Vector pi(L, 0.0);
  Matrix O(L, D);
  for (Index begin = 0; begin < T; begin += chunk) {
    const Index end = std::min(begin + chunk, T);
    for (Index i = 0; i < L; ++i) {
      // π_new ← π + exp(A_j).sum(2);  O_new ← (π ⊘ π_new) ⊛ O + (exp(A_j) ⊘ π_new) V_j
      double pi_new = pi[i];
      for (Index t = begin; t < end; ++t) pi_new += std::exp(dot(Q, i, K, t));
      for (Index k = 0; k < D; ++k) {
        O(i, k) *= pi[i] / pi_new;
        for (Index t = begin; t < end; ++t) O(i, k) += std::exp(dot(Q, i, K, t)) / pi_new * V(t, k);
      }
      pi[i] = pi_new;
    }
  }
  return O;
}

}  // namespace tg::reference
