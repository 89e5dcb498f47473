// The online normalizer [Ye, Online Softmax §3]: the maximum c of a row and the sum π of its exponentials, in
// one pass. Each thread processes its elements x: π ← π·exp(c − c') + exp(x − c'), with c' = max(c, x). Then
// the team combines the results of its threads.
#pragma once

#include "backends/cuda/kernels/rows.cuh"

namespace tg::cuda {

// eˣ for x ≤ 0: 2^(x·log₂e), with a relative error of 2⁻²² + |x|·2⁻²³. It is 0 below 2⁻¹²⁶. The error is
// large only if eˣ is small.
__device__ __forceinline__ float exp_below(float x) {
  return ptx::ex2(x * 1.44269504f);
}
__device__ __forceinline__ double exp_below(double x) {
  return exp(x);
}

template <class C>
struct Normalizer {
  C max = static_cast<C>(-__builtin_huge_val());
  C sum = 0;  // Σ exp(x - max); NaN if any x is NaN, 0 if all x are -∞

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
  // The value to subtract from x before exp. If all x are -∞, it is 0, so that exp returns 0 instead of NaN.
  __device__ __forceinline__ C shift() const {
    return max == static_cast<C>(-__builtin_huge_val()) ? C(0) : max;
  }
  // Combines the results of all threads of the team.
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

// Returns the result for a whole row (rows.cuh).
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
