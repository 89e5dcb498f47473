// What attention's forward does to a warp's scores between its two products, in registers: options, mask,
// online softmax, dropout. A thread's r-th row is row r / 2 · 16 + r % 2 · 8 + g of the warp's queries.
#pragma once

#include "backends/cuda/attention/score.cuh"

namespace tg::cuda::attn {

using tiles::Sums;

// s: from q·k to scores in units of log 2, of queries from i0 and keys from j0 on.
template <int Groups, int Parts, class S>
__device__ __forceinline__ void apply(const Extras<S>& extras, Sums<Parts> (&s)[Groups], const Attention& x,
                                      int i0, int j0) {
  const int g = tiles::lane_id() / 4, t = tiles::lane_id() % 4;
#pragma unroll
  for (int r = 0; r < 2 * Groups; ++r) {
    const int i = i0 + r / 2 * 16 + r % 2 * 8 + g;
#pragma unroll
    for (int p = 0; p < Parts; ++p)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& a = s[r / 2].x[p][r % 2 * 2 + e];
        const int j = j0 + 8 * p + 2 * t + e;
        float slope;
        a = extras.score(a, i, j, i < x.L && j < x.T, &slope);
      }
  }
}

// −∞ where the block's queries from row0 on do not attend.
template <int Groups, int Parts, int Queries>
__device__ __forceinline__ void mask(Sums<Parts> (&s)[Groups], const Keys<Queries>& ranges, int row0,
                                     int j0) {
  const int g = tiles::lane_id() / 4, t = tiles::lane_id() % 4;
#pragma unroll
  for (int r = 0; r < 2 * Groups; ++r) {
    const int row = row0 + r / 2 * 16 + r % 2 * 8 + g, first = ranges.first[row] - j0 - 2 * t,
              last = ranges.last[row] - j0 - 2 * t;
#pragma unroll
    for (int p = 0; p < Parts; ++p)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& a = s[r / 2].x[p][r % 2 * 2 + e];
        a = 8 * p + e >= first && 8 * p + e < last ? a : -INFINITY;
      }
  }
}

// s ⊛ D
template <int Groups, int Parts>
__device__ __forceinline__ void drop(Sums<Parts> (&s)[Groups], const Dropout<float>& dropout, int batch_head,
                                     int i0, int j0) {
#pragma unroll
  for (int m = 0; m < Groups; ++m)
#pragma unroll
    for (int p = 0; p < Parts; ++p) {
      tiles::u32 w[4];
      row_words(dropout, batch_head, i0 + m * 16 + tiles::lane_id() / 4, j0 + 8 * p, w);
#pragma unroll
      for (int e = 0; e < 4; ++e) s[m].x[p][e] *= dropout.factor(w[e]);
    }
}

// c and π of the rows; π is that of the thread's own columns until the end.
template <int Groups>
struct OnlineSoftmax {
  static constexpr int rows = 2 * Groups;
  static constexpr float unmoved = 8;  // c stays until a score is 2⁸ times above: any c near the top will do
  float top[rows], sum[rows];

  // The sink is a first key with value 0; −∞: none.
  __device__ __forceinline__ explicit OnlineSoftmax(float sink) {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      top[r] = sink * static_cast<float>(log2_e);
      sum[r] = top[r] > -INFINITY && tiles::lane_id() % 4 == 0 ? 1 : 0;
    }
  }
  // c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum, G ← exp(c_old − c)·G; A = s·factor becomes
  // exp(A − c).
  template <int Parts, int Columns>
  __device__ __forceinline__ void step(Sums<Parts> (&s)[Groups], Sums<Columns> (&o)[Groups], float factor) {
    float most[rows];
    bool moves = false;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      most[r] = -INFINITY;
#pragma unroll
      for (int p = 0; p < Parts; ++p)
        most[r] = fmaxf(most[r], fmaxf(s[r / 2].x[p][r % 2 * 2], s[r / 2].x[p][r % 2 * 2 + 1]));
      most[r] *= factor;
      moves |= most[r] > top[r] + unmoved;
    }
    if (__any_sync(~0u, moves)) {
#pragma unroll
      for (int r = 0; r < rows; ++r) {
        const float now = fmaxf(top[r], tiles::row_max(most[r]));
        const float shrink = now == -INFINITY ? 1.f : tiles::exp2_fast(top[r] - now);
        top[r] = now;
        sum[r] *= shrink;
#pragma unroll
        for (int p = 0; p < Columns; ++p)
          o[r / 2].x[p][r % 2 * 2] *= shrink, o[r / 2].x[p][r % 2 * 2 + 1] *= shrink;
      }
    }
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const float c = top[r] == -INFINITY ? 0.f : top[r];
#pragma unroll
      for (int p = 0; p < Parts; ++p)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& a = s[r / 2].x[p][r % 2 * 2 + e];
          a = tiles::exp2_fast(a * factor - c);
          sum[r] += a;
        }
    }
  }
  // O = G ⊘ π, ξ = c + log π, of queries from i0 on.
  template <int Columns>
  __device__ __forceinline__ void finish(Sums<Columns> (&o)[Groups], float* lse, int i0, int L) {
    const int g = tiles::lane_id() / 4, t = tiles::lane_id() % 4;
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      const int i = i0 + r / 2 * 16 + r % 2 * 8 + g;
      const float all = tiles::row_sum(sum[r]), inverse = all == 0 ? 0.f : 1 / all;
      if (t == 0 && i < L) lse[i] = all == 0 ? -INFINITY : top[r] * static_cast<float>(ln_2) + logf(all);
#pragma unroll
      for (int p = 0; p < Columns; ++p)
        o[r / 2].x[p][r % 2 * 2] *= inverse, o[r / 2].x[p][r % 2 * 2 + 1] *= inverse;
    }
  }
};

}  // namespace tg::cuda::attn
