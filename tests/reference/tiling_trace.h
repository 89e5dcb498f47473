// Computes the tiled attention of [Attention To Tiling Part III], without the scale, and records intermediate
// values of every tile. The trace uses the paper's letters. Elsewhere, S is called A, m is c, l is π, and O
// before the division is G. The gradients use our letters (docs/notation.md). Q [L, d], K [T, d], V [T, dv].
// The block size is the same for queries and keys and need not divide L and T. T ≥ 1.
#pragma once

#include "tests/reference/matrix.h"

namespace tg::reference {

// The trace in [Attention To Tiling] prints these numbers for each tile (query block × key block). A row is a
// query of the block.
struct TileStep {
  Index query_begin = 0, key_begin = 0;
  Matrix S;           // [B, B], scores of the tile
  Vector m_tile, m;   // [B], maximum of the tile, and running maximum after the tile
  Vector correction;  // [B], c = exp(m_old − m_new)
  Matrix P;           // [B, B], P̃ = exp(S − m_new)
  Vector l;           // [B], running sum after the tile
  Matrix O;           // [B, dv], unnormalized output after the tile
};

struct TilingForward {
  Vector m, l;  // [L]
  Matrix O;     // [L, dv]
  std::vector<TileStep> steps;
};

// [Attention To Tiling Part III, "Complete Trace" and "Code Verification"].
inline TilingForward tiling_forward(const Matrix& Q, const Matrix& K, const Matrix& V, Index block) {
  const Index L = Q.rows, T = K.rows, dv = V.cols;
  TilingForward f{Vector(L, -kInfinity), Vector(L, 0.0), Matrix(L, dv), {}};
  for (Index i0 = 0; i0 < L; i0 += block) {
    const Index rows = std::min(block, L - i0);
    for (Index j0 = 0; j0 < T; j0 += block) {
      const Index keys = std::min(block, T - j0);
      TileStep s{i0,
                 j0,
                 Matrix(rows, keys),
                 Vector(rows, -kInfinity),
                 Vector(rows),
                 Vector(rows),
                 Matrix(rows, keys),
                 Vector(rows),
                 Matrix(rows, dv)};
      for (Index r = 0; r < rows; ++r) {
        const Index i = i0 + r;
        for (Index j = 0; j < keys; ++j) s.S(r, j) = dot(Q, i, K, j0 + j);
        for (Index j = 0; j < keys; ++j) s.m_tile[r] = std::max(s.m_tile[r], s.S(r, j));
        s.m[r] = std::max(f.m[i], s.m_tile[r]);
        s.correction[r] = std::exp(f.m[i] - s.m[r]);
        s.l[r] = f.l[i] * s.correction[r];
        for (Index k = 0; k < dv; ++k) s.O(r, k) = f.O(i, k) * s.correction[r];
        for (Index j = 0; j < keys; ++j) {
          s.P(r, j) = std::exp(s.S(r, j) - s.m[r]);
          s.l[r] += s.P(r, j);
          for (Index k = 0; k < dv; ++k) s.O(r, k) += s.P(r, j) * V(j0 + j, k);
        }
        f.m[i] = s.m[r];
        f.l[i] = s.l[r];
        for (Index k = 0; k < dv; ++k) f.O(i, k) = s.O(r, k);
      }
      f.steps.push_back(s);
    }
  }
  for (Index i = 0; i < L; ++i)
    for (Index k = 0; k < dv; ++k) f.O(i, k) /= f.l[i];
  return f;
}

// [Attention To Tiling Part III, "Backward Algorithm"]: precomputes u (the paper's D), with query blocks in
// the outer loop.
inline Gradients tiling_backward(const Matrix& Q, const Matrix& K, const Matrix& V, const TilingForward& f,
                                 const Matrix& z_O, Index block) {
  Gradients g = zero_gradients(Q, K, V);
  Vector u(Q.rows);
  for (Index i = 0; i < Q.rows; ++i) u[i] = dot(z_O, i, f.O, i);
  for (Index i0 = 0; i0 < Q.rows; i0 += block)
    for (Index j0 = 0; j0 < K.rows; j0 += block)
      for (Index i = i0; i < std::min(i0 + block, Q.rows); ++i)
        for (Index j = j0; j < std::min(j0 + block, K.rows); ++j) {
          const double P = std::exp(dot(Q, i, K, j) - f.m[i]) / f.l[i];
          const double z_A = P * (dot(z_O, i, V, j) - u[i]);
          for (Index k = 0; k < V.cols; ++k) g.z_V(j, k) += P * z_O(i, k);
          for (Index k = 0; k < Q.cols; ++k) g.z_Q(i, k) += z_A * K(j, k);
          for (Index k = 0; k < Q.cols; ++k) g.z_K(j, k) += z_A * Q(i, k);
        }
  return g;
}

}  // namespace tg::reference
