// The online softmax: running maximum c and sum π of rows of scores, and ξ at the end. The forward, decoding
// and its f32 kernels share one state; each has its rule for when c moves.
#pragma once

#include <type_traits>

#include "backends/cuda/attention/stages/score.cuh"

namespace tg::cuda::attention {

using tile::Accumulator, tile::RowVector;

// Destination of a head's ξ, and of the rest that its rounding leaves (null: none). A part of the keys has c
// and π instead.
struct LseRows {
  float *lse, *rest;
  float2* part;

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

// How the largest score c of a row is held. Near 0 it is its exponent of 2, rounded: then 2^(s·f − c) is one
// fused multiply-add, and the rounding changes P, π and G alike. Beyond `limit` that rounding may overflow.
// So a far c is the score itself times a power of two, and c·ratio is its exponent. Both grow with the score.
struct Largest {
  float ratio, limit;

  __device__ __forceinline__ bool is_far(float c) const { return fabsf(c) > limit; }  // −∞, too
  // The exponent of 2, rounded, and what is left of it.
  __device__ __forceinline__ float2 exponent(float c) const {
    if (!is_far(c)) return {c, 0};
    return {c * ratio, fmaf(c, ratio, -(c * ratio))};
  }
  // Of a minus that of b, which is not −∞.
  __device__ __forceinline__ float difference(float a, float b) const {
    return is_far(a) && is_far(b) ? (a - b) * ratio : exponent(a).x - exponent(b).x;
  }
};
constexpr float most_near_exponent = 1 << 11;  // its rounding changes P by less than 2⁻¹³

// 2^((a − c)·exponent) of a score a and a largest one c, of which shown(c) is finite: 0 if no key has been
// seen.
__device__ __forceinline__ float exp_of_difference(float a, float c, float exponent) {
  return tile::exp2_fast((a - c) * exponent);
}
__device__ __forceinline__ float shown(float c) {
  return c == -INFINITY ? 0.f : c;
}

// How a warp's rows of softmax lie in a tile: how many the thread has a part of, and the largest and the sum
// over the lanes that share one. Scores are [queries, keys] in the forward and [keys, queries] in decoding.
template <int Rows>
struct QueriesAsRows {
  static constexpr int count = Rows / 8;
  static __device__ __forceinline__ float max(float own) { return tile::row_max(own); }
  static __device__ __forceinline__ float sum(float own) { return tile::row_sum(own); }
};
template <int Columns>
struct QueriesAsColumns {
  static constexpr int count = Columns / 4;
  static __device__ __forceinline__ float max(float own) { return tile::column_max(own); }
  static __device__ __forceinline__ float sum(float own) { return tile::column_sum(own); }
};
// A row of one thread.
struct OwnQuery {
  static constexpr int count = 1;
  static __device__ __forceinline__ float max(float own) { return own; }
  static __device__ __forceinline__ float sum(float own) { return own; }
};

// c, and π, which is that of the thread's own keys until the end. 2^(s·exponent) is the exponential of a
// score.
template <class Queries>
struct SoftmaxState {
  static constexpr int count = Queries::count;
  float top[count], sum[count];

  __device__ __forceinline__ SoftmaxState() {
#pragma unroll
    for (int q = 0; q < count; ++q) top[q] = -INFINITY, sum[q] = 0;
  }
  // c ← now, π ← exp(c_old − c)·π. Returns exp(c_old − c), for G.
  __device__ __forceinline__ float move(int q, float now, float exponent) {
    const float by = exp_of_difference(top[q], shown(now), exponent);
    top[q] = now, sum[q] *= by;
    return by;
  }
  // exp(A − c), which is added to π.
  __device__ __forceinline__ float add(int q, float a, float exponent) {
    const float p = exp_of_difference(a, shown(top[q]), exponent);
    sum[q] += p;
    return p;
  }
  // A.max and π, over all lanes of a row.
  template <class Scores>
  __device__ __forceinline__ static float most(Scores& s, int q) {
    float own = s(0, q);
#pragma unroll
    for (int k = 1; k < s.rows; ++k) own = fmaxf(own, s(k, q));
    return Queries::max(own);
  }
  __device__ __forceinline__ float all(int q) const {
    return Queries::sum(sum[q]);
  }
  // The step of decoding, for scores [keys, queries]: c ← max(c, A.max), π ← exp(c_old − c)·π +
  // exp(A − c).sum, rescale(q, exp(c_old − c)) for G; A becomes exp(A − c). Each query's c moves whenever a
  // score exceeds it: a rule that looks at others would let them change its bits. Keys take longer to read
  // than exponentials, so these are always of a difference, whatever the scores are.
  template <class Scores, class Rescale>
  __device__ __forceinline__ void step(Scores& s, float exponent, Rescale&& rescale) {
#pragma unroll
    for (int q = 0; q < count; ++q) {
      rescale(q, move(q, fmaxf(top[q], most(s, q)), exponent));
#pragma unroll
      for (int k = 0; k < s.rows; ++k) s(k, q) = add(q, s(k, q), exponent);
    }
  }
};

// The softmax of the forward. s·factor is the exponent of a score s. With a bias it may overflow. Then c is
// always a score (`by_scores`), and 2^((s − c)·factor) takes one instruction more. log π may be approximate,
// to 2⁻²² of it, where operands have fewer bits: the instruction takes no branch.
template <int Rows, bool approximate = false, bool by_scores = false>
struct OnlineSoftmax : SoftmaxState<QueriesAsRows<Rows>> {
  using State = SoftmaxState<QueriesAsRows<Rows>>;
  using State::count, State::sum, State::top;
  static constexpr float unmoved = 8;  // lazy rescaling: c stays until a score exceeds it by 8 (log2)
  RowVector<Rows> shrink;
  float factor;

  // The sink is a first key with value 0; −∞: none. `natural` is the value of a score of 1.
  __device__ __forceinline__ OnlineSoftmax(float sink, float factor, float natural)
      : OnlineSoftmax([&](int) { return sink; }, factor, natural) {}
  // The same with sink(i) of the warp's i-th query.
  template <class Sink>
  requires std::is_invocable_v<Sink, int> __device__ __forceinline__ OnlineSoftmax(Sink&& sink, float factor,
                                                                                   float natural)
      : factor(factor) {
#pragma unroll
    for (int r = 0; r < count; ++r) {
      const float a = sink(Accumulator<Rows, 8>::row(r) + tile::lane_row());
      top[r] = a == -INFINITY ? a : held(a / natural);
      sum[r] = top[r] > -INFINITY && tile::lane_id() % 4 == 0 ? 1 : 0;
    }
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
#pragma unroll
    for (int r = 0; r < count; ++r) {
      const float c = (by_scores ? top[r] == -INFINITY : largest().is_far(top[r])) ? 0.f : top[r];
#pragma unroll
      for (int k = from; k < (to ? to : s.columns); ++k) {
        s(r, k) = tile::exp2_fast(by_scores ? (s(r, k) - c) * factor : fmaf(s(r, k), factor, -c));
        sum[r] += s(r, k);
      }
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
  // O = G ⊘ π, ξ = c + log π, of queries from i0 on. `unit` is that of exponents of 2, or of scores if c is
  // one.
  template <int Columns>
  __device__ __forceinline__ void finish(Accumulator<Rows, Columns>& o, const LseRows& lse, int i0, int L,
                                         float2 unit) {
    finish(lse, i0, L, unit, [&](int r, float inverse) { tile::scale_row(o, r, inverse); });
  }
  // The same with scale(r, 1 ⊘ π) for each row of O. π is 0 or at least about 1: of some key, or the sink,
  // the exponential is.
  template <class Scale>
  __device__ __forceinline__ void finish(const LseRows& lse, int i0, int L, float2 unit, Scale&& scale) {
#pragma unroll
    for (int r = 0; r < count; ++r) {
      const int i = i0 + Accumulator<Rows, 8>::row(r) + tile::lane_row();
      const float all = this->all(r);
      scale(r, all == 0 ? 0.f : tile::reciprocal(all));
      if (tile::lane_id() % 4 != 0 || i >= L) continue;
      if (lse.part)
        lse.part[i] = {top[r], all};
      else
        lse.put(i, all == 0    ? float2{-INFINITY, 0}
                   : by_scores ? split_lse({top[r], 0}, log(all), unit)
                               : split_lse(largest().exponent(top[r]), log(all), unit));
    }
  }

 private:
  __device__ __forceinline__ static float log(float x) {
    if constexpr (approximate)
      return tile::log2_fast(x) * static_cast<float>(ln_2);
    else
      return logf(x);
  }
  __device__ __forceinline__ Largest largest() const {
    return {parts_of(factor).mantissa, most_near_exponent};
  }
  // c of a row with the largest score s.
  __device__ __forceinline__ float held(float s) const {
    if (by_scores) return s;
    const float e = s * factor;
    return largest().is_far(e) ? s * parts_of(factor).power : e;
  }
  // If a c of the warp moves: c ← max(c, A.max), π ← exp(c_old − c)·π, and moved(r, exp(c_old − c)) for each
  // row. One branch with all the work in it takes fewer registers than two. It also subtracts a far c.
  template <int Columns, class Moved>
  __device__ __forceinline__ void raise(Accumulator<Rows, Columns>& s, Moved&& moved) {
    RowVector<Rows> most = tile::own_row_max(s);
    bool moves = false;
#pragma unroll
    for (int r = 0; r < count; ++r)
      if constexpr (by_scores)
        moves |= (most[r] - top[r]) * factor > unmoved;
      else
        moves |= fmaf(most[r], factor, -unmoved) > top[r] || fabsf(top[r]) > most_near_exponent;
    if (!__any_sync(~0u, moves)) return;
#pragma unroll
    for (int r = 0; r < count; ++r) {
      const float m = tile::row_max(most[r]), now = fmaxf(top[r], held(m));
      const float apart = by_scores ? (top[r] - now) * factor : largest().difference(top[r], now);
      const float by = now == -INFINITY ? 1.f : tile::exp2_fast(apart);
      top[r] = now;
      sum[r] *= by;
      moved(r, by);
      if (by_scores || now == -INFINITY || !largest().is_far(now)) continue;
      const float score = now * parts_of(factor).inverse;
#pragma unroll
      for (int k = 0; k < s.columns; ++k) s(r, k) -= score;
    }
  }
};

}  // namespace tg::cuda::attention
