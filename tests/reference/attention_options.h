// The options of flash_attn as plain values, for the oracle in masked_attention.h.
#pragma once

#include <array>
#include <functional>
#include <optional>

#include "tests/reference/matrix.h"

namespace tg::reference {

struct AttentionShape {
  Index B, H, Hk, L, T, d, dv;  // H is a multiple of Hk; query head h reads key head h / (H / Hk)
};

struct AttentionOptions {
  std::optional<double> scale;                // default: 1/√d
  bool causal = false;                        // key t ≤ i + T − L
  bool top_left = false;                      // with causal: key t ≤ i instead
  Index window_left = -1, window_right = -1;  // −left ≤ t − (i + T − L) ≤ right; −1: no bound
  Vector bias;                                // empty, or row-major with bias_shape; −∞ masks a key
  std::array<Index, 4> bias_shape = {1, 1, 1, 1};  // each axis is 1 or as in [B, H, L, T]
  double softcap = 0;             // cap·tanh(s/cap) is applied to the scaled score s, before the bias; 0:
                                  // none
  Vector sink;                    // empty or [H]: an additional logit in the denominator, without a value row
  std::vector<Index> cu_q, cu_k;  // empty, or [S + 1]: sequence s begins at row cu_q[s] and key cu_k[s]
  std::vector<Index> kv_lengths;  // empty or [B]: number of keys of each batch entry; not with cu_q
  double dropout = 0;             // kept elements of P are divided by 1 − dropout
  std::function<bool(Index b, Index h, Index i, Index t)> keep;  // i in [0, L), t in [0, T), also if packed
  // Functions of a pair, with its positions in the text: A and its derivative for the capped score s, and
  // whether the pair is visible.
  std::function<std::array<double, 2>(double s, Index b, Index h, Index i, Index t)> score;
  std::function<bool(Index b, Index h, Index i, Index t)> mask;
};

// Positions of a pair in its sequence, and whether all options except the mask function make it visible.
struct Pair {
  bool visible = false;
  Index i = 0, t = 0;
};

// First checks sequences and lengths, then the causal mask and the window.
inline Pair pair_of(const AttentionShape& s, const AttentionOptions& o, Index b, Index i, Index t) {
  Index L = s.L, T = o.kv_lengths.empty() ? s.T : o.kv_lengths[b];
  if (!o.cu_q.empty()) {
    std::size_t n = 0;  // the sequence of row i
    while (n + 1 < o.cu_q.size() && !(o.cu_q[n] <= i && i < o.cu_q[n + 1])) ++n;
    if (n + 1 == o.cu_q.size()) return {};
    L = o.cu_q[n + 1] - o.cu_q[n];
    T = o.cu_k[n + 1] - o.cu_k[n];
    i -= o.cu_q[n];
    t -= o.cu_k[n];
  }
  const Index diagonal = i + T - L;  // aligned at the bottom right: the last query sees the last key
  const Index aligned = o.top_left ? i : diagonal;
  const bool visible = t >= 0 && t < T && !(o.causal && t > aligned) &&
                       !(o.window_left >= 0 && t < diagonal - o.window_left) &&
                       !(o.window_right >= 0 && t > diagonal + o.window_right);
  return {visible, aligned, t};
}

// Returns the index of the broadcast bias for (b, h, i, t).
inline Index bias_index(const AttentionOptions& o, Index b, Index h, Index i, Index t) {
  const Index at[4] = {b, h, i, t};
  Index offset = 0;
  for (int axis = 0; axis < 4; ++axis)
    offset = offset * o.bias_shape[axis] + (o.bias_shape[axis] == 1 ? 0 : at[axis]);
  return offset;
}

}  // namespace tg::reference
