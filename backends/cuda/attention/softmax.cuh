// The online softmax of a warp's queries: running maximum c and sum π, and ξ at the end. exp(A − c) is
// 2^((s − t)·f − o), as in ops/attention_call.h.
#pragma once

#include <type_traits>

#include "backends/cuda/attention/score.cuh"

namespace tg::cuda::attention {

using tile::Accumulator, tile::RowVector;

// Destination of a head's ξ, and of the rest that its rounding leaves (null: none). A part of the keys has c
// and π instead.
struct LseRows {
  float *lse, *rest;
  float2* part;

  __device__ __forceinline__ void put(i64 i, float c, float pi, float log_pi, Units units) const {
    if (part) {
      part[i] = {c, pi};
      return;
    }
    put(i, pi == 0 ? float2{-INFINITY, 0} : split_lse(c, log_pi, units));
  }
  // Stores ξ as its rounded value and the rest.
  __device__ __forceinline__ void put(i64 i, float2 xi) const {
    lse[i] = xi.x;
    if (rest) rest[i] = xi.y;
  }
};
// The results of a call, starting at a row.
__device__ __forceinline__ LseRows lse_of_call(const AttentionCall& x, i64 row) {
  float* const rest = static_cast<float*>(x.lse_rest);
  return {static_cast<float*>(x.lse) + row, rest ? rest + row : nullptr, nullptr};
}

// c, and π, which is that of the thread's own columns until the end. log π may be approximate, to 2⁻²² of it,
// where operands have fewer bits: the instruction takes no branch.
template <int Rows, bool approximate = false>
struct OnlineSoftmax {
  static constexpr float unmoved = 8;  // lazy rescaling: c stays until a score exceeds it by 8 (log2)
  RowVector<Rows> top, sum, shrink;
  Units units;
  bool far;  // some c of the warp is beyond most_plain_exponent

  // The sink is a first key with value 0; −∞: none.
  __device__ __forceinline__ OnlineSoftmax(float sink, Units units)
      : OnlineSoftmax([&](int) { return sink; }, units) {}
  // The same with sink(i) of the warp's i-th query.
  template <class Sink>
  requires std::is_invocable_v<Sink, int> __device__ __forceinline__ OnlineSoftmax(Sink&& sink, Units units)
      : units(units) {
    bool is_far_here = false;
#pragma unroll
    for (int r = 0; r < top.rows; ++r) {
      const float a = sink(Accumulator<Rows, 8>::row(r) + tile::lane_row());
      top[r] = a == -INFINITY ? a : units.of(a);
      sum[r] = top[r] > -INFINITY && tile::lane_id() % 4 == 0 ? 1 : 0;
      is_far_here |= is_far(top[r]);
    }
    far = __any_sync(~0u, is_far_here);
  }
  // c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum; A becomes exp(A − c). Returns whether c moved:
  // then rescale O before adding to it.
  template <int Columns>
  __device__ __forceinline__ bool step(Accumulator<Rows, Columns>& s) {
    const bool moved = raise(s);
    exponentiate(s);
    return moved;
  }
  // Its parts: c; and A = exp(A − c) in the thread's columns from `from` to `to` − 1, or all.
  template <int Columns>
  __device__ __forceinline__ bool raise(Accumulator<Rows, Columns>& s) {
    bool moved = false;
    raise(s, [&](int r, float by) { shrink[r] = by, moved = true; });
    return moved;
  }
  template <int from = 0, int to = 0, int Columns>
  __device__ __forceinline__ void exponentiate(Accumulator<Rows, Columns>& s) {
    constexpr auto end = [](int columns) { return to ? to : columns; };
    RowVector<Rows> offset;
#pragma unroll
    for (int r = 0; r < top.rows; ++r) offset[r] = offset_of(top[r]);
    if (far) {
#pragma unroll
      for (int r = 0; r < top.rows; ++r) {
        const float shift = is_far(top[r]) ? top[r] : 0.f;
        if (is_far(top[r])) offset[r] = 0;
#pragma unroll
        for (int k = from; k < end(s.columns); ++k) s(r, k) -= shift;
      }
    }
#pragma unroll
    for (int r = 0; r < top.rows; ++r)
#pragma unroll
      for (int k = from; k < end(s.columns); ++k) {
        s(r, k) = tile::exp2_fast(fmaf(s(r, k), units.exponent, -offset[r]));
        sum[r] += s(r, k);
      }
  }
  // The same, rescaling O at once: then no registers hold `shrink`.
  template <int Columns, int Values>
  __device__ __forceinline__ void step(Accumulator<Rows, Columns>& s, Accumulator<Rows, Values>& o) {
    raise(s, [&](int r, float by) { tile::scale_row(o, r, by); });
    exponentiate(s);
  }
  // G ← exp(c_old − c)·G, after a step that moved c.
  template <int Columns>
  __device__ __forceinline__ void rescale(Accumulator<Rows, Columns>& o) const {
    tile::scale_rows(o, shrink);
  }
  // O = G ⊘ π, ξ = c + log π, of queries from i0 on.
  template <int Columns>
  __device__ __forceinline__ void finish(Accumulator<Rows, Columns>& o, const LseRows& lse, int i0, int L) {
    finish(lse, i0, L, [&](int r, float inverse) { tile::scale_row(o, r, inverse); });
  }
  // The same with scale(r, 1 ⊘ π) for each row of O. π is 0 or at least about 1: of some key, or the sink,
  // the exponential is.
  template <class Scale>
  __device__ __forceinline__ void finish(const LseRows& lse, int i0, int L, Scale&& scale) {
#pragma unroll
    for (int r = 0; r < top.rows; ++r) {
      const int i = i0 + Accumulator<Rows, 8>::row(r) + tile::lane_row();
      const float all = tile::row_sum(sum[r]);
      scale(r, all == 0 ? 0.f : tile::reciprocal(all));
      if (tile::lane_id() % 4 == 0 && i < L) lse.put(i, top[r], all, log(all), units);
    }
  }

 private:
  __device__ __forceinline__ bool is_far(float c) const {
    return fabsf(c * units.exponent) > static_cast<float>(most_plain_exponent) && c != -INFINITY;
  }
  // o of a row with the largest score c that is not far. Without keys, finite: exp(−∞ − o) is 0, not NaN.
  __device__ __forceinline__ float offset_of(float c) const {
    return fmaxf(__fmul_rn(c, units.exponent), -2 * static_cast<float>(most_plain_exponent));
  }
  __device__ __forceinline__ static float log(float x) {
    if constexpr (approximate)
      return tile::log2_fast(x) * static_cast<float>(ln_2);
    else
      return logf(x);
  }
  // If a c of the warp moves: c ← max(c, A.max), π ← exp(c_old − c)·π, and moved(r, exp(c_old − c)) for each
  // row. One branch with all the work in it takes fewer registers than two.
  template <int Columns, class Moved>
  __device__ __forceinline__ void raise(Accumulator<Rows, Columns>& s, Moved&& moved) {
    RowVector<Rows> most = tile::own_row_max(s);
    bool moves = false;
#pragma unroll
    for (int r = 0; r < top.rows; ++r) moves |= (most[r] - top[r]) * units.exponent > unmoved;
    if (!__any_sync(~0u, moves)) return;
    bool is_far_here = false;
#pragma unroll
    for (int r = 0; r < top.rows; ++r) {
      const float now = fmaxf(top[r], tile::row_max(most[r]));
      const float apart = is_far(now) || is_far(top[r]) ? (top[r] - now) * units.exponent
                          : top[r] == -INFINITY         ? -INFINITY
                                                        : offset_of(top[r]) - offset_of(now);
      const float by = now == -INFINITY ? 1.f : tile::exp2_fast(apart);
      is_far_here |= is_far(now);
      top[r] = now;
      sum[r] *= by;
      moved(r, by);
    }
    far = __any_sync(~0u, is_far_here);
  }
};

}  // namespace tg::cuda::attention
