// The online normalizer [Ye, Online Softmax §3]. It computes the maximum c of a row and the sum π of the
// exponentials in one pass. The row is processed in chunks that stay in the L1 cache. For each chunk, c' =
// max(c, max x) and π ← π·exp(c − c') + Σ exp(x − c').
#pragma once

#include "backends/cpu/kernels/rows.h"

namespace tg::cpu::TG_ISA {

template <class C>
class Normalizer {
 public:
  C max = static_cast<C>(-__builtin_inf());
  C sum = 0;  // Σ exp(x - max); NaN if any x is NaN, 0 if all x are -∞

  static constexpr i64 chunk = piece_size(1024, 64);

  void take(const C* x, i64 n) {
    for (i64 first = 0; first < n; first += chunk)
      take_chunk(x + first, n - first < chunk ? n - first : chunk, [](i64, V, int) {});
  }
  // Adds n elements x. Saves exp(x - top) in e, where `top` is the maximum so far, and saves `top` of chunk i
  // in tops[i]. e may be x.
  void take(const C* x, i64 n, C* e, C* tops) {
    for (i64 first = 0; first < n; first += chunk) {
      take_chunk(x + first, n - first < chunk ? n - first : chunk,
                 [&](i64 i, V v, int k) { store_n(e + first + i, v, k); });
      tops[first / chunk] = max;
    }
  }
  C log_of_sum() const { return log(splat<V>(sum))[0]; }
  C log_sum() const { return max + log_of_sum(); }

 private:
  using V = vector_t<C>;

  // Calls keep(i, exp(x - max), k) for k elements, starting at i.
  template <class Keep>
  TG_INLINE void take_chunk(const C* p, i64 n, Keep keep) {
    constexpr int W = lanes<V>;
    const C lowest = static_cast<C>(-__builtin_inf());
    V top[2] = {splat<V>(max), splat<V>(max)};  // this operand order ignores NaN
    i64 i = 0;
    for (; i + 2 * W <= n; i += 2 * W)
      top[0] = TG_ISA::max(load(p + i), top[0]), top[1] = TG_ISA::max(load(p + i + W), top[1]);
    for (; i + W <= n; i += W) top[0] = TG_ISA::max(load(p + i), top[0]);
    if (i < n) {
      const int k = static_cast<int>(n - i);
      top[1] = TG_ISA::max(first_n<C>(load_n(p + i, k), k, lowest), top[1]);
    }
    const C higher = reduce_max(TG_ISA::max(top[0], top[1]));
    if (higher > max && sum != 0) sum *= exp_of(max - higher);
    max = higher;
    const V shift = splat<V>(max == lowest ? C{0} : max);  // all -∞: exp returns 0, not NaN
    sum += sum_of<C>(n, [&](i64 j, int k) {
      __builtin_prefetch(p + j + 2 * chunk);  // loads overlap with exp; rows are often consecutive
      const V e = exp(load_n(p + j, k) - shift);
      keep(j, e, k);
      return first_n<C>(e, k, 0);
    });
  }
};

}  // namespace tg::cpu::TG_ISA
