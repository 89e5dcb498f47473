// Implements attention layers. They compute standard attention one head at a time. The layers are MHA
// [Stratos, Efficient Attention §B.3.1; Stratos, FlashAttention eq. 7], GQA [Stratos, FlashAttention §3.1]
// and MLA [Stratos, FlashAttention eq. 8].
#pragma once

#include "tests/reference/standard_attention.h"

namespace tg::reference {

// Computes [O_1 … O_H] W_f with O_h = softmax(Q_h K_hᵀ/√d_H) V_h. Query head h uses key head ⌈h/R⌉. Q [L, H
// d_H], K [T, H d_H/R], V [T, H D_H/R], W_f [H D_H, D] → [L, D].
inline Matrix attend_by_heads(const Matrix& Q, const Matrix& K, const Matrix& V, const Matrix& W_f, Index H,
                              Index R) {
  const Index d_H = Q.cols / H, D_H = V.cols / (H / R);
  Matrix O(Q.rows, H * D_H);
  for (Index h = 0; h < H; ++h) {
    const Index g = h / R;
    const Matrix O_h =
        standard_forward(columns(Q, h * d_H, (h + 1) * d_H), columns(K, g * d_H, (g + 1) * d_H),
                         columns(V, g * D_H, (g + 1) * D_H))
            .O;
    for (Index i = 0; i < Q.rows; ++i)
      for (Index k = 0; k < D_H; ++k) O(i, h * D_H + k) = O_h(i, k);
  }
  return matmul(O, W_f);
}

// [Stratos, Efficient Attention §B.3.1]. Q [L, d], K [T, d], V [T, D], W_q, W_k [d, d], W_v, W_f [D, D]; H
// divides d and D.
inline Matrix multi_head_attention(const Matrix& Q, const Matrix& K, const Matrix& V, const Matrix& W_q,
                                   const Matrix& W_k, const Matrix& W_v, const Matrix& W_f, Index H) {
  return attend_by_heads(matmul(Q, W_q), matmul(K, W_k), matmul(V, W_v), W_f, H, 1);
}

// [Stratos, FlashAttention §3.1]. X [T, d], W_q, W_f [d, d], U_k, U_v [d, d/R]; H heads in groups of R.
inline Matrix grouped_query_attention(const Matrix& X, const Matrix& W_q, const Matrix& U_k,
                                      const Matrix& U_v, const Matrix& W_f, Index H, Index R) {
  return attend_by_heads(matmul(X, W_q), matmul(X, U_k), matmul(X, U_v), W_f, H, R);
}

// [Stratos, FlashAttention eq. 8]. X [T, d], D_q, D_kv [d, m], U_q, U_k, U_v [m, d], W_f [d, d].
inline Matrix latent_attention(const Matrix& X, const Matrix& D_q, const Matrix& U_q, const Matrix& D_kv,
                               const Matrix& U_k, const Matrix& U_v, const Matrix& W_f, Index H) {
  const Matrix Z = matmul(X, D_kv);  // [T, m], stored in a cache
  return attend_by_heads(matmul(matmul(X, D_q), U_q), matmul(Z, U_k), matmul(Z, U_v), W_f, H, 1);
}

// [Stratos, FlashAttention §3.2], H = 1 with U_k and U_v absorbed: softmax(X D_q E Zᵀ/√d) Z F, E = U_q U_kᵀ
// [m, m], F = U_v W_f [m, d].
inline Matrix absorbed_latent_attention(const Matrix& X, const Matrix& D_q, const Matrix& U_q,
                                        const Matrix& D_kv, const Matrix& U_k, const Matrix& U_v,
                                        const Matrix& W_f) {
  const Matrix E = matmul(U_q, transpose(U_k)), F = matmul(U_v, W_f), Z = matmul(X, D_kv);
  // standard_forward divides logits by √m, but the paper divides them by √d.
  const double m = static_cast<double>(Z.cols), d = static_cast<double>(U_q.cols);
  const Matrix queries = scaled(matmul(matmul(X, D_q), E), std::sqrt(m / d));
  return matmul(standard_forward(queries, Z, Z).O, F);
}

}  // namespace tg::reference
