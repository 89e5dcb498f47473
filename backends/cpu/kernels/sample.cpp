// sample: draws a token for each row of logits, with the weights of ops/sample.h. A row is one part. Compiled
// without FMA contraction, so that results are bitwise identical for every instruction set.
#include "ops/sample.h"

#include "backends/cpu/kernels/rows.h"

namespace tg::cpu::TG_ISA {

namespace {

using Weight = std::uint64_t;

// A set of most likely tokens, in the order of order_of(). It contains tokens with logits above `least`. It
// also contains tokens up to number `last` with logits equal to `least`.
struct Likeliest {
  std::uint64_t least = 0;
  i64 last = INT64_MAX;
  TG_INLINE bool has(std::uint64_t order, i64 i) const {
    return order > least || (order == least && i <= last);
  }
};

// Returns the smallest set of most likely tokens with a total `amount` of at least `needed`. Tokens with
// equal logits are ordered by index. The function determines `least` in digits of eight bits, highest digit
// first.
template <class C, class F>
Likeliest likeliest(const C* logits, i64 n, Weight needed, F amount) {
  constexpr int bits = 8 * static_cast<int>(sizeof(C));
  std::uint64_t least = 0;
  for (int shift = bits - 8; shift >= 0; shift -= 8) {
    Weight of_digit[256] = {};
    for (i64 i = 0; i < n; ++i) {
      const std::uint64_t order = order_of(logits[i]);
      if ((order >> shift >> 8) == (least >> shift >> 8)) of_digit[order >> shift & 255] += amount(i);
    }
    int digit = 255;
    for (; digit > 0 && of_digit[digit] < needed; --digit) needed -= of_digit[digit];
    least |= static_cast<std::uint64_t>(digit) << shift;
  }
  for (i64 i = 0; i < n; ++i) {
    if (order_of(logits[i]) != least) continue;
    const Weight a = amount(i);
    if (needed <= a) return {least, i};
    needed -= a;
  }
  return {least};
}

struct Setting {
  double temperature, top_p;
  i64 top_k;
  Weight fraction;
};

template <class C>
i64 token(const C* logits, i64 n, const Setting& s, Weight* weights) {
  i64 best = -1;
  for (i64 i = 0; i < n; ++i)
    if (logits[i] == logits[i] && (best < 0 || logits[i] > logits[best])) best = i;
  if (best < 0) return -1;  // all are NaN
  const double top = static_cast<double>(logits[best]);
  if (!is_drawn(s.temperature) || top - top != 0) return best;  // or infinite
  const double rate = 1 / s.temperature;
  const int bits = sample_bits(static_cast<std::uint64_t>(n));
  Weight total = 0;
  for (i64 i = 0; i < n; ++i)
    total += weights[i] = sample_weight(static_cast<double>(logits[i]), top, rate, bits);
  const auto keep = [&](Weight needed, auto amount) {
    const Likeliest kept = likeliest(logits, n, needed, amount);
    total = 0;
    for (i64 i = 0; i < n; ++i) total += weights[i] = kept.has(order_of(logits[i]), i) ? weights[i] : 0;
  };
  if (s.top_k > 0 && s.top_k < n) keep(static_cast<Weight>(s.top_k), [](i64) { return Weight{1}; });
  if (s.top_p < 1) keep(kept_weight(total, s.top_p), [&](i64 i) { return weights[i]; });
  Weight left = share_of(total, s.fraction);
  i64 i = 0;
  for (; left >= weights[i]; ++i) left -= weights[i];
  return i;
}

template <class C>
void run_as(Worker& w, const Call& call) {
  const bool cut = call.in.size() == 5;
  const AxisRows<C> logits(call.in[0], 1);
  const AxisRows<double> temperature(call.in[1], -1), top_p(call.in[cut ? 4 : 1], -1);
  const AxisRows<i64> keys(call.in[2], -1), top_k(call.in[cut ? 3 : 2], -1);
  auto* out = reinterpret_cast<std::int32_t*>(call.out[0].data);  // [B]
  auto* weights = reinterpret_cast<Weight*>(w.scratch);           // [V]
  C* buffer = reinterpret_cast<C*>(weights + logits.n);           // [V]
  w.each(logits.count, [&](i64 r) {
    const auto key = [&](i64 i) { return static_cast<std::uint64_t>(keys.one(2 * r + i)); };
    const Setting s{temperature.one(r), cut ? top_p.one(r) : 1, cut ? top_k.one(r) : 0,
                    sample_fraction(key(0), key(1))};
    out[r] = static_cast<std::int32_t>(token(logits.read(r, buffer), logits.n, s, weights));
  });
}

Scratch scratch(const Call& call, int) {
  return {(sizeof(Weight) + sizeof(double)) * static_cast<std::size_t>(call.in[0].layout.shape[1]), 0};
}

}  // namespace

extern const Kernel sample_kernel{&run_float<run_as<double>, run_as<float>>, &scratch};

}  // namespace tg::cpu::TG_ISA
