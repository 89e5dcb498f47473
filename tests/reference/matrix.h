// Defines the row-major f64 matrix of all reference algorithms, and operations that the papers write as
// symbols. Tests compare the library with these algorithms, so files in tests/reference do not use the
// library.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace tg::reference {

using Index = std::int64_t;
using Vector = std::vector<double>;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Matrix {
  Index rows = 0, cols = 0;
  Vector data;  // [rows, cols], row-major [Stratos, Efficient Attention §B.2]

  Matrix() = default;
  Matrix(Index m, Index n, double value = 0.0) : rows(m), cols(n), data(m * n, value) {}
  Matrix(Index m, Index n, Vector values) : rows(m), cols(n), data(std::move(values)) {}
  double& operator()(Index i, Index j) { return data[i * cols + j]; }
  double operator()(Index i, Index j) const { return data[i * cols + j]; }
};

// Returns A[i, :] · B[j, :].
inline double dot(const Matrix& A, Index i, const Matrix& B, Index j) {
  double sum = 0;
  for (Index k = 0; k < A.cols; ++k) sum += A(i, k) * B(j, k);
  return sum;
}

inline Matrix transpose(const Matrix& A) {
  Matrix B(A.cols, A.rows);
  for (Index i = 0; i < A.rows; ++i)
    for (Index j = 0; j < A.cols; ++j) B(j, i) = A(i, j);
  return B;
}

// Computes [m, n] · [n, p] → [m, p].
inline Matrix matmul(const Matrix& A, const Matrix& B) {
  Matrix C(A.rows, B.cols);
  for (Index i = 0; i < A.rows; ++i)
    for (Index j = 0; j < B.cols; ++j)
      for (Index k = 0; k < A.cols; ++k) C(i, j) += A(i, k) * B(k, j);
  return C;
}

inline Matrix scaled(Matrix A, double factor) {
  for (double& a : A.data) a *= factor;
  return A;
}

inline void add_to(Matrix& A, const Matrix& B) {
  for (std::size_t i = 0; i < A.data.size(); ++i) A.data[i] += B.data[i];
}

// Returns columns [begin, end) of A.
inline Matrix columns(const Matrix& A, Index begin, Index end) {
  Matrix B(A.rows, end - begin);
  for (Index i = 0; i < A.rows; ++i)
    for (Index j = begin; j < end; ++j) B(i, j - begin) = A(i, j);
  return B;
}

// The gradient slots of Q, K and V [Stratos, Efficient Attention §1.2, §C]. A backward pass adds to them.
struct Gradients {
  Matrix z_Q;  // [L, d]
  Matrix z_K;  // [T, d]
  Matrix z_V;  // [T, D]
};

inline Gradients zero_gradients(const Matrix& Q, const Matrix& K, const Matrix& V) {
  return {Matrix(Q.rows, Q.cols), Matrix(K.rows, K.cols), Matrix(V.rows, V.cols)};
}

}  // namespace tg::reference
