// The online normaliser [Ye, Online Softmax §3]: maximum c and sum of exponentials π of a row in one pass
// over it, by every thread for its elements and then for the team: π ← π·exp(c − c') + exp(x − c'), c' =
// max(c, x).
#pragma once

#include "backends/cuda/kernels/rows.cuh"

namespace tg::cuda {

// eˣ for x ≤ 0: 2^(x·log₂e), with a relative error of 2⁻²² + |x|·2⁻²³, which matters little where eˣ is
// small; below 2⁻¹²⁶ it is 0.
__device__ __forceinline__ float exp_below(float x) {
  return ptx::ex2(x * 1.44269504f);
}
__device__ __forceinline__ double exp_below(double x) {
  return exp(x);
}

template <class C>
struct Normalizer {
  C max = static_cast<C>(-__builtin_huge_val());
  C sum = 0;  // of exp(x - max); NaN if an x is, 0 if every x is -∞

  __device__ __forceinline__ void take(C x) {
    const C one[] = {x};
    take(one);
  }
  template <int count>
  __device__ __forceinline__ void take(const C (&x)[count]) {
    C top = max;
#pragma unroll
    for (int e = 0; e < count; ++e) top = fmax(top, x[e]);
    if (top > max) {
      sum *= exp_below(max - top);
      max = top;
    }
    const C low = shift();
#pragma unroll
    for (int e = 0; e < count; ++e) sum += exp_below(x[e] - low);
  }
  // The number to subtract from x before exp: if all are -∞, 0, so that exp gives 0 and not NaN.
  __device__ __forceinline__ C shift() const {
    return max == static_cast<C>(-__builtin_huge_val()) ? C(0) : max;
  }
  // The same over all elements of the team.
  template <class T>
  __device__ __forceinline__ void combine(T& team) {
    const C all = team.max(max);
    if (max != all) sum *= exp_below(max - all);
    max = all;
    sum = team.sum(sum);
  }
  __device__ __forceinline__ void merge(const Normalizer& o) {
    const bool lower = o.max > max;
    const C other = lower ? max : o.max, scaled = lower ? sum : o.sum;
    if (lower) max = o.max, sum = o.sum;
    sum += other == max ? scaled : scaled * exp_below(other - max);
  }
  __device__ __forceinline__ C log_sum() const {
    return max + log(sum);
  }
};

// Of a whole row (rows.cuh).
template <class T, class Row>
__device__ __forceinline__ auto normalizer_of(T& team, const Row& row) {
  Normalizer<typename Row::C> all;
  if constexpr (Row::held) {
    all.max = team.max(row.max());
    const auto shift = all.shift();
    all.sum = team.sum(row.sum([&](auto x, auto) { return exp_below(x - shift); }));
  } else {
    row.read_packs([&](const auto& x) { all.take(x); });
    all.combine(team);
  }
  return all;
}

}  // namespace tg::cuda
