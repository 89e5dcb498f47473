// FlashAttention-1: saves c and π, with chunks of keys in the outer loop [Stratos, Efficient Attention
// §1.1-1.2; Stratos, FlashAttention §2.2-2.3]. Q [L, d], K [T, d], V [T, D]. The batch size Γ of queries and
// the chunk size Λ of keys need not divide L and T. T ≥ 1.
#pragma once

#include "tests/reference/matrix.h"

namespace tg::reference {

struct Flash1Forward {
  Vector c, pi;     // [L], [L]
  Matrix O;         // [L, D]
  Index reads = 0;  // number of loaded entries of Q, K, V and O, for memory_reads.h
};

// [Stratos, Efficient Attention §1.1] and FlashForward of [Stratos, FlashAttention §2.2]. [Stratos, Efficient
// Attention] prints ⊙ instead of ⊘.
inline Flash1Forward flash1_forward(const Matrix& Q, const Matrix& K, const Matrix& V, Index batch,
                                    Index chunk) {
  const Index L = Q.rows, T = K.rows, d = Q.cols, D = V.cols;
  const double root_d = std::sqrt(static_cast<double>(d));
  Flash1Forward f{Vector(L, -kInfinity), Vector(L, 0.0), Matrix(L, D)};
  for (Index t0 = 0; t0 < T; t0 += chunk) {
    const Index t1 = std::min(t0 + chunk, T);
    f.reads += (t1 - t0) * (d + D);  // load K[j], V[j]
    for (Index i0 = 0; i0 < L; i0 += batch) {
      const Index i1 = std::min(i0 + batch, L);
      f.reads += (i1 - i0) * (d + D);  // load Q[i], O[i]
      for (Index i = i0; i < i1; ++i) {
        Vector A;  // [Λ], A[i,j] = Q[i] K[j]ᵀ/√d
        for (Index t = t0; t < t1; ++t) A.push_back(dot(Q, i, K, t) / root_d);
        const double c_new = std::max(f.c[i], *std::max_element(A.begin(), A.end()));
        // π_new = exp(c − c_new) ⊛ π + exp(A ⊖ c_new).sum(2)
        double pi_new = std::exp(f.c[i] - c_new) * f.pi[i];
        for (double a : A) pi_new += std::exp(a - c_new);
        // O_new = (π ⊘ π_new) ⊛ exp(c − c_new) ⊛ O + (exp(A ⊖ c_new) ⊘ π_new) V[j]
        for (Index k = 0; k < D; ++k) {
          f.O(i, k) *= f.pi[i] / pi_new * std::exp(f.c[i] - c_new);
          for (Index t = t0; t < t1; ++t) f.O(i, k) += std::exp(A[t - t0] - c_new) / pi_new * V(t, k);
        }
        f.c[i] = c_new;
        f.pi[i] = pi_new;
      }
    }
  }
  return f;
}

// [Stratos, Efficient Attention §1.2] and FlashBackward of [Stratos, FlashAttention §2.3]. c, π and O are
// results of the forward pass. z_O has shape [L, D]. Adds to the gradient slots z. [Stratos, FlashAttention]
// prints Q_j in the update of z_K, but [Stratos, Efficient Attention] has Q_i.
inline void flash1_backward(const Matrix& Q, const Matrix& K, const Matrix& V, const Flash1Forward& f,
                            const Matrix& z_O, Index batch, Index chunk, Gradients& z) {
  const Index L = Q.rows, T = K.rows, d = Q.cols, D = V.cols;
  const double root_d = std::sqrt(static_cast<double>(d));
  for (Index t0 = 0; t0 < T; t0 += chunk)
    for (Index i0 = 0; i0 < L; i0 += batch)
      for (Index i = i0; i < std::min(i0 + batch, L); ++i) {
        const double u = dot(f.O, i, z_O, i);  // Lemma 2.1
        for (Index t = t0; t < std::min(t0 + chunk, T); ++t) {
          const double P = std::exp(dot(Q, i, K, t) / root_d - f.c[i]) / f.pi[i];
          const double z_P = dot(z_O, i, V, t);
          const double z_A = P * (z_P - u);
          for (Index k = 0; k < D; ++k) z.z_V(t, k) += P * z_O(i, k);
          for (Index k = 0; k < d; ++k) z.z_K(t, k) += z_A * Q(i, k) / root_d;
          for (Index k = 0; k < d; ++k) z.z_Q(i, k) += z_A * K(t, k) / root_d;
        }
      }
}

}  // namespace tg::reference
