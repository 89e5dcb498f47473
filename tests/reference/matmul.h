// Multiplies square matrices and counts the reads of global memory [Stratos, FlashAttention §1.2].
#pragma once

#include "tests/reference/matrix.h"

namespace tg::reference {

struct CountedProduct {
  Matrix C;         // [n, n]
  Index reads = 0;  // number of entries of A and B that are read
};

// MatMul I of [Stratos, FlashAttention §1.2]: 2n³ reads.
inline CountedProduct matmul_one(const Matrix& A, const Matrix& B) {
  const Index n = A.rows;
  CountedProduct out{Matrix(n, n)};
  const auto read = [&](double x) { return ++out.reads, x; };
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j)
      for (Index k = 0; k < n; ++k) {
        const double a_ik = read(A(i, k));
        const double b_kj = read(B(k, j));
        out.C(i, j) += a_ik * b_kj;
      }
  return out;
}

// MatMul II of [Stratos, FlashAttention §1.2]: AB = Σ_k A.col(k) B.row(k), with cached column u and row v;
// 2n² reads.
inline CountedProduct matmul_two(const Matrix& A, const Matrix& B) {
  const Index n = A.rows;
  CountedProduct out{Matrix(n, n)};
  const auto read = [&](double x) { return ++out.reads, x; };
  Vector u(n), v(n);
  for (Index k = 0; k < n; ++k) {
    for (Index i = 0; i < n; ++i) {
      u[i] = read(A(i, k));
      v[i] = read(B(k, i));
    }
    for (Index i = 0; i < n; ++i)
      for (Index j = 0; j < n; ++j) out.C(i, j) += u[i] * v[j];
  }
  return out;
}

}  // namespace tg::reference
