// Computes the two-pass memory-efficient attention of [Yeeboxie, FlashAttentionNote], without scale and
// maximum. It needs O(n) extra memory. Every sum is a plain loop. The note's do and D are called z_O and u
// here (docs/notation.md). The note's normalization constants L are called Lc. Q [L, d], K [T, d], V [T, dv];
// z_O [L, dv].
#pragma once

#include "tests/reference/matrix.h"

namespace tg::reference {

struct MemoryEfficientForward {
  Vector Lc;  // [L], the normalization constants
  Matrix O;   // [L, dv]
};

// [Yeeboxie, FlashAttentionNote §1, eq. 1-2].
inline MemoryEfficientForward memory_efficient_forward(const Matrix& Q, const Matrix& K, const Matrix& V) {
  MemoryEfficientForward f{Vector(Q.rows, 0.0), Matrix(Q.rows, V.cols)};
  for (Index i = 0; i < Q.rows; ++i)
    for (Index j = 0; j < K.rows; ++j) f.Lc[i] += std::exp(dot(Q, i, K, j));  // (1)
  for (Index i = 0; i < Q.rows; ++i)
    for (Index j = 0; j < K.rows; ++j)
      for (Index k = 0; k < V.cols; ++k) f.O(i, k) += std::exp(dot(Q, i, K, j)) / f.Lc[i] * V(j, k);  // (2)
  return f;
}

// [Yeeboxie, FlashAttentionNote §2, eq. 3, 6, 8, 9], in the order of its four steps. The note prints do_j in
// (8) and (9), and Σ_j in (9), but (4) and (7) imply do_i and Σ_i.
inline Gradients memory_efficient_backward(const Matrix& Q, const Matrix& K, const Matrix& V,
                                           const MemoryEfficientForward& f, const Matrix& z_O) {
  Gradients g = zero_gradients(Q, K, V);
  const auto P = [&](Index i, Index j) { return std::exp(dot(Q, i, K, j)) / f.Lc[i]; };
  for (Index j = 0; j < K.rows; ++j)
    for (Index i = 0; i < Q.rows; ++i)
      for (Index k = 0; k < V.cols; ++k) g.z_V(j, k) += P(i, j) * z_O(i, k);  // (3)
  Vector u(Q.rows);
  for (Index i = 0; i < Q.rows; ++i) u[i] = dot(z_O, i, f.O, i);  // (6)
  for (Index i = 0; i < Q.rows; ++i)
    for (Index j = 0; j < K.rows; ++j)
      for (Index k = 0; k < Q.cols; ++k)
        g.z_Q(i, k) += P(i, j) * (dot(z_O, i, V, j) - u[i]) * K(j, k);  // (8)
  for (Index j = 0; j < K.rows; ++j)
    for (Index i = 0; i < Q.rows; ++i)
      for (Index k = 0; k < Q.cols; ++k)
        g.z_K(j, k) += P(i, j) * (dot(z_O, i, V, j) - u[i]) * Q(i, k);  // (9)
  return g;
}

}  // namespace tg::reference
