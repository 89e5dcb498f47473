// The online normaliser (001 §3): maximum and sum of exponentials of a row in one pass over it. It goes by
// chunks that stay in the first-level cache: d ← d·exp(c − c') + Σ exp(x − c'), c' = max(c, max x).
#pragma once

#include "backends/cpu/kernels/rows.h"

namespace tg::cpu::TG_ISA {

template <class C>
struct Normalizer {
  C max = static_cast<C>(-__builtin_inf());
  C sum = 0;  // of exp(x - max); NaN if an x is, 0 if every x is -∞

  void take(const C* x, i64 n) {
    using V = vector_t<C>;
    constexpr i64 chunk = 1024;
    constexpr int W = lanes<V>;
    const C lowest = static_cast<C>(-__builtin_inf());
    for (i64 first = 0; first < n; first += chunk) {
      const C* p = x + first;
      const i64 m = n - first < chunk ? n - first : chunk;
      V top[2] = {splat<V>(max), splat<V>(max)};  // NaN is left out by this order of the operands
      i64 i = 0;
      for (; i + 2 * W <= m; i += 2 * W)
        top[0] = TG_ISA::max(load(p + i), top[0]), top[1] = TG_ISA::max(load(p + i + W), top[1]);
      for (; i < m; i += W) {
        const int k = m - i < W ? static_cast<int>(m - i) : W;
        top[0] = TG_ISA::max(first_n<C>(load_n(p + i, k), k, lowest), top[0]);
      }
      const C higher = reduce_max(TG_ISA::max(top[0], top[1]));
      if (higher > max) sum = sum == 0 ? sum : sum * exp_of(max - higher);
      max = higher;
      const V shift = splat<V>(max == lowest ? C{0} : max);  // all -∞: exp gives 0 and not NaN
      sum += sum_of<C>(m, [&](i64 j, int k) { return first_n<C>(exp(load_n(p + j, k) - shift), k, 0); });
    }
  }
  C log_sum() const { return max + log(splat<vector_t<C>>(sum))[0]; }
};

}  // namespace tg::cpu::TG_ISA
