// The online normaliser (001 §3): maximum and sum of exponentials of a row in one pass over it, by every
// thread for its elements and then for the team: π ← π·exp(c − c') + exp(x − c'), c' = max(c, x).
#pragma once

#include "backends/cuda/kernels/rows.cuh"

namespace tg::cuda {

template <class C>
struct Normalizer {
  C max = static_cast<C>(-__builtin_huge_val());
  C sum = 0;  // of exp(x - max); NaN if an x is, 0 if every x is -∞

  __device__ __forceinline__ void take(C x) {
    if (x > max) {
      sum *= exp(max - x);
      max = x;
    }
    sum += exp(x - shift());
  }
  template <int count>
  __device__ __forceinline__ void take(const C (&x)[count]) {
    C top = max;
#pragma unroll
    for (int e = 0; e < count; ++e) top = x[e] > top ? x[e] : top;
    if (top > max) {
      sum *= exp(max - top);
      max = top;
    }
    const C low = shift();
#pragma unroll
    for (int e = 0; e < count; ++e) sum += exp(x[e] - low);
  }
  // What to take from x before exp: all -∞ give 0 and not NaN.
  __device__ __forceinline__ C shift() const {
    return max == static_cast<C>(-__builtin_huge_val()) ? C(0) : max;
  }
  // The same over all elements of the team.
  template <class T>
  __device__ __forceinline__ void combine(const T& team) {
    const C all = team.max(max);
    if (max != all) sum *= exp(max - all);
    max = all;
    sum = team.sum(sum);
  }
  __device__ __forceinline__ void merge(const Normalizer& o) {
    const bool lower = o.max > max;
    const C other = lower ? max : o.max, scaled = lower ? sum : o.sum;
    if (lower) max = o.max, sum = o.sum;
    sum += other == max ? scaled : scaled * exp(other - max);
  }
  __device__ __forceinline__ C log_sum() const {
    return max + log(sum);
  }
};

}  // namespace tg::cuda
