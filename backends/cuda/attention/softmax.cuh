// The online softmax of a warp's queries: running maximum c and sum π, and ξ at the end.
#pragma once

#include <type_traits>

#include "backends/cuda/attention/score.cuh"

namespace tg::cuda::attention {

using tile::Accumulator, tile::RowVector;

// c in units of log 2, and π, which is that of the thread's own columns until the end. log π may be
// approximate, to 2⁻²² of it, where operands have fewer bits: the instruction takes no branch.
template <int Rows, bool approximate = false>
struct OnlineSoftmax {
  static constexpr float unmoved = 8;  // lazy rescaling: c stays until a score exceeds it by 8 (log2)
  RowVector<Rows> top, sum, shrink;

  // The sink is a first key with value 0; −∞: none.
  __device__ __forceinline__ explicit OnlineSoftmax(float sink) : OnlineSoftmax([&](int) { return sink; }) {}
  // The same with sink(i) of the warp's i-th query.
  template <class Sink>
  requires std::is_invocable_v<Sink, int> __device__ __forceinline__ explicit OnlineSoftmax(Sink&& sink) {
#pragma unroll
    for (int r = 0; r < top.rows; ++r) {
      top[r] = sink(Accumulator<Rows, 8>::row(r) + tile::lane_row()) * static_cast<float>(log2_e);
      sum[r] = top[r] > -INFINITY && tile::lane_id() % 4 == 0 ? 1 : 0;
    }
  }
  // c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum; A = s·factor becomes exp(A − c). Returns
  // whether c moved: then rescale O before adding to it.
  template <int Columns>
  __device__ __forceinline__ bool step(Accumulator<Rows, Columns>& s, float factor) {
    const bool moved = raise(s, factor);
    exponentiate(s, factor);
    return moved;
  }
  // Its parts: c; and A = exp(A − c) in the thread's columns from `from` to `to` − 1, or all.
  template <int Columns>
  __device__ __forceinline__ bool raise(Accumulator<Rows, Columns>& s, float factor) {
    bool moved = false;
    raise(s, factor, [&](int r, float by) { shrink[r] = by, moved = true; });
    return moved;
  }
  template <int from = 0, int to = 0, int Columns>
  __device__ __forceinline__ void exponentiate(Accumulator<Rows, Columns>& s, float factor) {
#pragma unroll
    for (int r = 0; r < top.rows; ++r) {
      const float c = top[r] == -INFINITY ? 0.f : top[r];
#pragma unroll
      for (int k = from; k < (to ? to : s.columns); ++k) {
        s(r, k) = tile::exp2_fast(s(r, k) * factor - c);
        sum[r] += s(r, k);
      }
    }
  }
  // The same, rescaling O at once: then no registers hold `shrink`.
  template <int Columns, int Values>
  __device__ __forceinline__ void step(Accumulator<Rows, Columns>& s, Accumulator<Rows, Values>& o,
                                       float factor) {
    raise(s, factor, [&](int r, float by) { tile::scale_row(o, r, by); });
    exponentiate(s, factor);
  }
  // G ← exp(c_old − c)·G, after a step that moved c.
  template <int Columns>
  __device__ __forceinline__ void rescale(Accumulator<Rows, Columns>& o) const {
    tile::scale_rows(o, shrink);
  }
  // O = G ⊘ π, ξ = c + log π, of queries from i0 on.
  template <int Columns>
  __device__ __forceinline__ void finish(Accumulator<Rows, Columns>& o, float* lse, int i0, int L) {
    finish(lse, i0, L, [&](int r, float inverse) { tile::scale_row(o, r, inverse); });
  }
  // The same with scale(r, 1 ⊘ π) for each row of O. π is 0 or at least about 1: of some key, or the sink,
  // the exponential is.
  template <class Scale>
  __device__ __forceinline__ void finish(float* lse, int i0, int L, Scale&& scale) {
#pragma unroll
    for (int r = 0; r < top.rows; ++r) {
      const int i = i0 + Accumulator<Rows, 8>::row(r) + tile::lane_row();
      const float all = tile::row_sum(sum[r]);
      scale(r, all == 0 ? 0.f : tile::reciprocal(all));
      const float xi = all == 0 ? -INFINITY : top[r] * static_cast<float>(ln_2) + log(all);
      if (tile::lane_id() % 4 == 0 && i < L) lse[i] = xi;
    }
  }

 private:
  __device__ __forceinline__ static float log(float x) {
    if constexpr (approximate)
      return tile::log2_fast(x) * static_cast<float>(ln_2);
    else
      return logf(x);
  }
  // If a c of the warp moves: c ← max(c, A.max), π ← exp(c_old − c)·π, and moved(r, exp(c_old − c)) for each
  // row. One branch with all the work in it takes fewer registers than two.
  template <int Columns, class Moved>
  __device__ __forceinline__ void raise(Accumulator<Rows, Columns>& s, float factor, Moved&& moved) {
    RowVector<Rows> most = tile::own_row_max(s);
    bool moves = false;
#pragma unroll
    for (int r = 0; r < top.rows; ++r) {
      most[r] *= factor;
      moves |= most[r] > top[r] + unmoved;
    }
    if (!__any_sync(~0u, moves)) return;
#pragma unroll
    for (int r = 0; r < top.rows; ++r) {
      const float now = fmaxf(top[r], tile::row_max(most[r]));
      const float by = now == -INFINITY ? 1.f : tile::exp2_fast(top[r] - now);
      top[r] = now;
      sum[r] *= by;
      moved(r, by);
    }
  }
};

// Results of a query over two disjoint sets of keys become one: O = a·O₁ + b·O₂ with
// ξ = log(exp ξ₁ + exp ξ₂). A set without visible keys (ξ = −∞) contributes nothing.
struct Merge {
  float lse, a, b;
};
__device__ __forceinline__ Merge merge(float lse_1, float lse_2) {
  const float top = fmaxf(lse_1, lse_2);
  if (top == -INFINITY) return {top, 0, 0};
  const float a = expf(lse_1 - top), b = expf(lse_2 - top), sum = a + b;
  return {top + logf(sum), a / sum, b / sum};
}

}  // namespace tg::cuda::attention
