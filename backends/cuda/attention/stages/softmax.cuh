// Online softmax: running maximum c and sum π of each score row, and ξ at the end. All forward and decoding
// kernels share one state. They differ in the condition under which c is updated.
#pragma once

#include <type_traits>

#include "backends/cuda/attention/stages/score.cuh"

namespace tg::cuda::attention {

using tile::Accumulator, tile::RowVector;

// Destination of a head's ξ and of its rounding remainder (null: not stored). For split keys, `part` receives
// c and π instead.
struct LseRows {
  float *lse, *rest;
  float2* part;

  // Stores ξ as its rounded value and the remainder.
  __device__ __forceinline__ void put(i64 i, float2 xi) const {
    lse[i] = xi.x;
    if (rest) rest[i] = xi.y;
  }
};
// Returns the destination in the results of a call, starting at `row`.
__device__ __forceinline__ LseRows lse_of_call(const AttentionCall& x, i64 row) {
  float* const rest = static_cast<float*>(x.lse_rest);
  return {static_cast<float*>(x.lse) + row, rest ? rest + row : nullptr, nullptr};
}

// Representation of a row's largest score c. Near 0, c is the rounded exponent of 2. Then 2^(s·f − c) is one
// fused multiply-add, and the rounding changes P, π and G by the same factor. Beyond `limit`, that rounding
// could overflow. A far c is therefore the score itself, multiplied by a power of two. The exponent is then
// c·ratio. Both representations increase with the score.
struct Largest {
  float ratio, limit;

  __device__ __forceinline__ bool is_far(float c) const { return fabsf(c) > limit; }  // includes −∞
  // The exponent of 2 as its rounded value and the remainder.
  __device__ __forceinline__ float2 exponent(float c) const {
    if (!is_far(c)) return {c, 0};
    return {c * ratio, fmaf(c, ratio, -(c * ratio))};
  }
  // The exponent of a minus the exponent of b, which is not −∞.
  __device__ __forceinline__ float difference(float a, float b) const {
    return is_far(a) && is_far(b) ? (a - b) * ratio : exponent(a).x - exponent(b).x;
  }
};
constexpr float most_near_exponent = 1 << 11;  // rounding changes P by less than 2⁻¹³

// 2^((a − c)·exponent) for score a and finite c = shown(top); 0 if no key has been seen.
__device__ __forceinline__ float exp_of_difference(float a, float c, float exponent) {
  return tile::exp2_fast((a - c) * exponent);
}
__device__ __forceinline__ float shown(float c) {
  return c == -INFINITY ? 0.f : c;
}

// Distribution of a warp's softmax rows over its lanes: the number of rows per thread, and reductions over
// the lanes that share a row. Scores are [queries, keys] in the forward and [keys, queries] in decoding.
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
// One thread has a whole row.
struct OwnQuery {
  static constexpr int count = 1;
  static __device__ __forceinline__ float max(float own) { return own; }
  static __device__ __forceinline__ float sum(float own) { return own; }
};

// Running c and π. Until the end, π covers only the thread's own keys. 2^(s·exponent) is the exponential of a
// score s.
template <class Queries>
struct SoftmaxState {
  static constexpr int count = Queries::count;
  float top[count], sum[count];

  __device__ __forceinline__ SoftmaxState() {
#pragma unroll
    for (int q = 0; q < count; ++q) top[q] = -INFINITY, sum[q] = 0;
  }
  // c ← now, π ← exp(c_old − c)·π. Returns exp(c_old − c), the factor of G.
  __device__ __forceinline__ float move(int q, float now, float exponent) {
    const float by = exp_of_difference(top[q], shown(now), exponent);
    top[q] = now, sum[q] *= by;
    return by;
  }
  // Returns exp(A − c) and adds it to π.
  __device__ __forceinline__ float add(int q, float a, float exponent) {
    const float p = exp_of_difference(a, shown(top[q]), exponent);
    sum[q] += p;
    return p;
  }
  // most(): A.max over all lanes of a row. all(): π over these lanes.
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
  // The decoding step, for scores [keys, queries]: c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum,
  // and A becomes exp(A − c). Calls rescale(q, exp(c_old − c)) for G. A query's c changes whenever one of its
  // own scores exceeds it. A rule that depends on other queries would not be batch-invariant. The exponent is
  // always computed from a difference. This takes longer than one multiply-add, but the key loads hide the
  // time.
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

// Online softmax of the forward. s·factor is the exponent of score s. With a bias it may overflow.
// `by_scores` then keeps c as a score, and 2^((s − c)·factor) needs one more instruction. `approximate`
// computes log π to 2⁻²² without a branch, which is enough for 16-bit operands.
template <int Rows, bool approximate = false, bool by_scores = false>
struct OnlineSoftmax : SoftmaxState<QueriesAsRows<Rows>> {
  using State = SoftmaxState<QueriesAsRows<Rows>>;
  using State::count, State::sum, State::top;
  static constexpr float unmoved = 8;  // lazy rescaling: c stays until a score exceeds it by 8 (log2)
  RowVector<Rows> shrink;
  float factor;

  // The sink counts as a first key with value 0. If it is −∞, there is no sink. `natural` is the value of a
  // score of 1.
  __device__ __forceinline__ OnlineSoftmax(float sink, float factor, float natural)
      : OnlineSoftmax([&](int) { return sink; }, factor, natural) {}
  // Uses sink(i) as the sink of the warp's ith query.
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
  // c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum, and A becomes exp(A − c). Returns whether c
  // changed. If so, the caller must rescale O before it adds to O.
  template <int Columns>
  __device__ __forceinline__ bool step(Accumulator<Rows, Columns>& s) {
    const bool moved = raise(s);
    exponentiate(s);
    return moved;
  }
  // The two parts of step(): raise() updates c; exponentiate() computes A = exp(A − c) in the thread's
  // columns `from` … `to` − 1, or in all.
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
  // A step that rescales O immediately, so `shrink` needs no registers.
  template <int Columns, int Values>
  __device__ __forceinline__ void step(Accumulator<Rows, Columns>& s, Accumulator<Rows, Values>& o) {
    raise(s, [&](int r, float by) { tile::scale_row(o, r, by); });
    exponentiate(s);
  }
  // G ← exp(c_old − c)·G, after a step that changed c.
  template <int Columns>
  __device__ __forceinline__ void rescale(Accumulator<Rows, Columns>& o) const {
    tile::scale_rows(o, shrink);
  }
  // O = G ⊘ π and ξ = c + log π for queries i0 …. `unit` is the value of one unit of c. c is an exponent of
  // 2, or a score if by_scores.
  template <int Columns>
  __device__ __forceinline__ void finish(Accumulator<Rows, Columns>& o, const LseRows& lse, int i0, int L,
                                         float2 unit) {
    finish(lse, i0, L, unit, [&](int r, float inverse) { tile::scale_row(o, r, inverse); });
  }
  // Stores ξ. Instead of scaling O, calls scale(r, 1 ⊘ π) for each row r of O. π is 0 or at least about 1,
  // because some key or the sink has an exponential of about 1 or more.
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
  // c of a row whose largest score is s.
  __device__ __forceinline__ float held(float s) const {
    if (by_scores) return s;
    const float e = s * factor;
    return largest().is_far(e) ? s * parts_of(factor).power : e;
  }
  // If the c of any row of the warp changes: c ← max(c, A.max), π ← exp(c_old − c)·π, and moved(r,
  // exp(c_old − c)) for each row. Also subtracts a far c from the scores. All of this is in one branch
  // because two branches would use more registers.
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
