// The softmax of decoding. Scores are [keys, queries], a query's are a column. Keys take longer to read than
// exponentials, so exp(A − c) is always that of a difference, whatever the scores are.
#pragma once

#include "backends/cuda/attention/stages/softmax.cuh"

namespace tg::cuda::attention::decoding {

using tile::Accumulator;

// 2^((a − c)·f), with 0 for c = −∞ if no key has been seen.
__device__ __forceinline__ float exp_of_difference(float a, float c, float exponent) {
  return tile::exp2_fast((a - c) * exponent);
}

// c, and π, which is that of the thread's own keys until the end. Each query's c moves
// whenever a score exceeds it: a rule that looks at others would let them change its bits.
template <int Queries>
struct ColumnSoftmax {
  static constexpr int columns = Queries / 4;  // of a thread
  float top[columns], sum[columns];

  __device__ __forceinline__ ColumnSoftmax() {
#pragma unroll
    for (int q = 0; q < columns; ++q) top[q] = -INFINITY, sum[q] = 0;
  }
  // c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum, G ← exp(c_old − c)·G; A becomes
  // exp(A − c).
  template <int Keys, int Values>
  __device__ __forceinline__ void step(Accumulator<Keys, Queries>& s, Accumulator<Values, Queries>& o,
                                       float exponent) {
#pragma unroll
    for (int q = 0; q < columns; ++q) {
      float most = s(0, q);
#pragma unroll
      for (int k = 1; k < s.rows; ++k) most = fmaxf(most, s(k, q));
      const float now = fmaxf(top[q], tile::column_max(most)), c = now == -INFINITY ? 0.f : now,
                  by = exp_of_difference(top[q], c, exponent);
      top[q] = now, sum[q] *= by;
      tile::scale_column(o, q, by);
#pragma unroll
      for (int k = 0; k < s.rows; ++k) {
        s(k, q) = exp_of_difference(s(k, q), c, exponent);
        sum[q] += s(k, q);
      }
    }
  }
};

// Results of some keys, whose largest score is `before`, and those of others, whose is c (−∞: none, nothing
// changes) become one: by the same instructions wherever that is.
struct Joined {
  float top, by, by_c;  // the larger score; what results are multiplied by
  bool some;

  __device__ __forceinline__ Joined(float before, float c, float exponent)
      : top(fmaxf(before, c)),
        by(exp_of_difference(before, top, exponent)),
        by_c(exp_of_difference(c, top, exponent)),
        some(c != -INFINITY) {}
  __device__ __forceinline__ float of(float before, float more) const {
    return some ? fmaf(by_c, more, __fmul_rn(by, before)) : before;
  }
};

// Four columns of results over several sets of keys, in their order: c, π and G of what has been added.
struct MergedSets {
  float top = -INFINITY, sum = 0;
  float4 o{0, 0, 0, 0};

  // A set with its c, π and G.
  __device__ __forceinline__ void add(float c, float pi, const float4& g, float exponent) {
    const Joined all(top, c, exponent);
    top = all.top, sum = all.of(sum, pi);
    o = {all.of(o.x, g.x), all.of(o.y, g.y), all.of(o.z, g.z), all.of(o.w, g.w)};
  }
  // Several at once, each with c and π, and with O.
  template <int N>
  __device__ __forceinline__ void add(const float2 (&of_set)[N], const float4 (&g)[N], float exponent) {
    float now = top;
#pragma unroll
    for (int n = 0; n < N; ++n) now = fmaxf(now, of_set[n].x);
    const float shown = now == -INFINITY ? 0.f : now, by = exp_of_difference(top, shown, exponent);
    top = now, sum = __fmul_rn(sum, by), o.x *= by, o.y *= by, o.z *= by, o.w *= by;
#pragma unroll
    for (int n = 0; n < N; ++n) {
      // Rounded, for each N: the compiler may not add the product to the sum in one instruction.
      const float w = __fmul_rn(exp_of_difference(of_set[n].x, shown, exponent), of_set[n].y);
      sum = __fadd_rn(sum, w);
      o.x = fmaf(w, g[n].x, o.x), o.y = fmaf(w, g[n].y, o.y);
      o.z = fmaf(w, g[n].z, o.z), o.w = fmaf(w, g[n].w, o.w);
    }
  }
  // A key with this score and the value 0.
  __device__ __forceinline__ void add_sink(float c, float exponent) {
    const float now = fmaxf(top, c);
    if (now == -INFINITY) return;
    const float by = exp_of_difference(top, now, exponent);
    top = now, sum = fmaf(sum, by, exp_of_difference(c, now, exponent));
    o.x *= by, o.y *= by, o.z *= by, o.w *= by;
  }
  // The same as one set with its O, which then has the bits that it has among sets of no keys.
  __device__ __forceinline__ MergedSets as_one(float exponent) const {
    const float2 own[1] = {{top, sum}};
    const float4 g[1] = {finished()};
    MergedSets one;
    one.add(own, g, exponent);
    return one;
  }
  // O = G ⊘ π.
  __device__ __forceinline__ float4 finished() const {
    const float by = sum > 0 ? tile::reciprocal(sum) : sum;
    return {o.x * by, o.y * by, o.z * by, o.w * by};
  }
};

}  // namespace tg::cuda::attention::decoding
