// Computes standard attention with the L×T matrices in memory [Stratos, Efficient Attention §A.1; Stratos,
// FlashAttention §2.1, eq. 4-5]. Q [L, d], K [T, d], V [T, D] → O [L, D]; T ≥ 1.
#pragma once

#include "tests/reference/matrix.h"

namespace tg::reference {

struct StandardForward {
  Matrix A;      // [L, T], QKᵀ/√d
  Vector c, pi;  // [L], row maximum and row sum of exp(A − c)
  Matrix P, O;   // [L, T], [L, D]
};

// [Stratos, Efficient Attention §A.1]. Its step 3 prints ⊙. [Stratos, FlashAttention eq. 4] has the correct
// ⊖.
inline StandardForward standard_forward(const Matrix& Q, const Matrix& K, const Matrix& V) {
  const Index L = Q.rows, T = K.rows;
  const double root_d = std::sqrt(static_cast<double>(Q.cols));
  StandardForward f{Matrix(L, T), Vector(L, -kInfinity), Vector(L, 0.0), Matrix(L, T), Matrix()};
  for (Index i = 0; i < L; ++i) {
    for (Index t = 0; t < T; ++t) f.A(i, t) = dot(Q, i, K, t) / root_d;
    for (Index t = 0; t < T; ++t) f.c[i] = std::max(f.c[i], f.A(i, t));
    for (Index t = 0; t < T; ++t) f.pi[i] += std::exp(f.A(i, t) - f.c[i]);
    for (Index t = 0; t < T; ++t) f.P(i, t) = std::exp(f.A(i, t) - f.c[i]) / f.pi[i];
  }
  f.O = matmul(f.P, V);
  return f;
}

// u = (P ⊛ z_P).sum(2) with z_P = z_O Vᵀ, the left side of [Stratos, FlashAttention Lemma 2.1]: [L].
inline Vector row_sums_of_P_z_P(const Matrix& P, const Matrix& V, const Matrix& z_O) {
  Vector u(P.rows, 0.0);
  for (Index i = 0; i < P.rows; ++i)
    for (Index t = 0; t < P.cols; ++t) u[i] += P(i, t) * dot(z_O, i, V, t);
  return u;
}

// u = (O ⊛ z_O).sum(2), the right side of [Stratos, FlashAttention Lemma 2.1] [Stratos, Efficient Attention
// §1.2]: [L].
inline Vector row_sums_of_O_z_O(const Matrix& O, const Matrix& z_O) {
  Vector u(O.rows);
  for (Index i = 0; i < O.rows; ++i) u[i] = dot(O, i, z_O, i);
  return u;
}

// [Stratos, Efficient Attention §A.1]. It accumulates as in [Stratos, FlashAttention eq. 5]. P [L, T] is a
// result of the forward pass. z_O has shape [L, D].
inline void standard_backward(const Matrix& Q, const Matrix& K, const Matrix& V, const Matrix& P,
                              const Matrix& z_O, Gradients& z) {
  const double root_d = std::sqrt(static_cast<double>(Q.cols));
  const Vector u = row_sums_of_P_z_P(P, V, z_O);
  Matrix z_A = matmul(z_O, transpose(V));  // [L, T], here z_P
  for (Index i = 0; i < P.rows; ++i)
    for (Index t = 0; t < P.cols; ++t) z_A(i, t) = P(i, t) * z_A(i, t) - u[i] * P(i, t);
  add_to(z.z_V, matmul(transpose(P), z_O));
  add_to(z.z_K, scaled(matmul(transpose(z_A), Q), 1 / root_d));
  add_to(z.z_Q, scaled(matmul(z_A, K), 1 / root_d));
}

}  // namespace tg::reference
