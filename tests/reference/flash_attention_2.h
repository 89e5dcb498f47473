// FlashAttention-2 [Stratos, FlashAttention §D]. Normalizes at the end, and saves only ξ = c + log π. Batches
// of queries are in the outer loop. Q [L, d], K [T, d], V [T, D]. The batch size Γ of queries and the chunk
// size Λ of keys need not divide L and T. T ≥ 1.
#pragma once

#include "tests/reference/matrix.h"

namespace tg::reference {

struct Flash2Forward {
  Matrix O;   // [L, D]
  Vector xi;  // [L]
};

// FlashForward2 of [Stratos, FlashAttention §D].
inline Flash2Forward flash2_forward(const Matrix& Q, const Matrix& K, const Matrix& V, Index batch,
                                    Index chunk) {
  const Index L = Q.rows, T = K.rows, D = V.cols;
  const double root_d = std::sqrt(static_cast<double>(Q.cols));
  Flash2Forward f{Matrix(L, D), Vector(L)};
  for (Index i0 = 0; i0 < L; i0 += batch)
    for (Index i = i0; i < std::min(i0 + batch, L); ++i) {
      double c = -kInfinity, pi = 0;
      Vector G(D, 0.0);
      for (Index t0 = 0; t0 < T; t0 += chunk) {
        Vector A;  // [Λ], A_{i,j} = Q_i K_jᵀ/√d
        for (Index t = t0; t < std::min(t0 + chunk, T); ++t) A.push_back(dot(Q, i, K, t) / root_d);
        const double c_new = std::max(c, *std::max_element(A.begin(), A.end()));
        // π_new = exp(c − c_new) ⊛ π + exp(A ⊖ c_new).sum(2)
        pi *= std::exp(c - c_new);
        for (double a : A) pi += std::exp(a - c_new);
        // G_new = exp(c − c_new) ⊛ G + exp(A ⊖ c_new) V_j
        for (Index k = 0; k < D; ++k) {
          G[k] *= std::exp(c - c_new);
          for (std::size_t t = 0; t < A.size(); ++t) G[k] += std::exp(A[t] - c_new) * V(t0 + Index(t), k);
        }
        c = c_new;
      }
      for (Index k = 0; k < D; ++k) f.O(i, k) = G[k] / pi;
      f.xi[i] = c + std::log(pi);
    }
  return f;
}

// [Stratos, FlashAttention §D]: FlashBackward of §2.3 with P = exp(QKᵀ/√d ⊖ ξ). Adds to the gradient slots z.
inline void flash2_backward(const Matrix& Q, const Matrix& K, const Matrix& V, const Flash2Forward& f,
                            const Matrix& z_O, Index batch, Index chunk, Gradients& z) {
  const Index L = Q.rows, T = K.rows, d = Q.cols, D = V.cols;
  const double root_d = std::sqrt(static_cast<double>(d));
  for (Index t0 = 0; t0 < T; t0 += chunk)
    for (Index i0 = 0; i0 < L; i0 += batch)
      for (Index i = i0; i < std::min(i0 + batch, L); ++i) {
        const double u = dot(f.O, i, z_O, i);  // Lemma 2.1
        for (Index t = t0; t < std::min(t0 + chunk, T); ++t) {
          const double P = std::exp(dot(Q, i, K, t) / root_d - f.xi[i]);
          const double z_A = P * (dot(z_O, i, V, t) - u);
          for (Index k = 0; k < D; ++k) z.z_V(t, k) += P * z_O(i, k);
          for (Index k = 0; k < d; ++k) z.z_K(t, k) += z_A * Q(i, k) / root_d;
          for (Index k = 0; k < d; ++k) z.z_Q(i, k) += z_A * K(t, k) / root_d;
        }
      }
}

}  // namespace tg::reference
