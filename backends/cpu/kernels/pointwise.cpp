// The elementwise ops. Each is one line of the table below: its formula on vectors.
#include <cmath>
#include <limits>

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/simd_math.h"

namespace tg::cpu::TG_ISA {

namespace {

template <class V>
TG_INLINE V number(double x) {
  return splat<V>(x);
}
template <class V, class M>
TG_INLINE V truth(M mask) {  // 1 if true, otherwise 0
  return select(mask, number<V>(1), number<V>(0));
}
template <class V>
TG_INLINE V sigmoid_of(V a) {
  return number<V>(1) / (number<V>(1) + exp(-a));
}
// at_least() raises smaller arguments to the limit. within() clamps arguments to ±limit. Beyond the limits
// used below, σ or Φ is 0 or 1 in f64. At ±∞, the formulas would compute 0·∞ without the clamp. NaN stays
// NaN.
template <class V>
TG_INLINE V at_least(double limit, V x) {
  return max(number<V>(limit), x);
}
template <class V>
TG_INLINE V within(double limit, V x) {
  return at_least(-limit, min(number<V>(limit), x));
}
// d/dx x·σ(w) = σ·(1 + x·w′·(1 - σ)), computed from w and v = x·w′. The form 1 - σ = exp(-w)·σ avoids
// cancellation. If the exponential is large, σ is 0, so the exponential can be clamped.
template <class V>
TG_INLINE V slope_of(V v, V w) {
  const V e = exp(-w), s = number<V>(1) / (number<V>(1) + e);
  return s * fma(v, min(number<V>(1e38), e) * s, number<V>(1));
}
template <class V>
TG_INLINE V gelu_of(V x) {
  return x * normal_cdf(x);
}
template <class V>
TG_INLINE V gelu_slope_of(V x) {  // Φ(x) + x·φ(x)
  return fma(x * number<V>(0.39894228040143267794), exp(x * x * number<V>(-0.5)), normal_cdf(x));
}
// w = 2u = √(8/π)·(x + 0.044715 x³) and its derivative
template <class V>
TG_INLINE V twice_u(V x) {
  return number<V>(1.59576912160573071176) * x * fma(x * x, number<V>(0.044715), number<V>(1));
}
template <class V>
TG_INLINE V twice_du(V x) {
  return number<V>(1.59576912160573071176) * fma(x * x, number<V>(3 * 0.044715), number<V>(1));
}
template <class V>
TG_INLINE V silu_of(V x) {
  return x * sigmoid_of(x);
}
template <class V>
TG_INLINE V gelu_tanh_of(V x) {
  return x * sigmoid_of(twice_u(x));
}
template <class V>
TG_INLINE V gelu_tanh_slope_of(V x) {
  return slope_of(x * twice_du(x), twice_u(x));
}
template <class V>
TG_INLINE V silu_slope_of(V x) {
  return slope_of(x, x);
}
template <class V>
TG_INLINE V raise(V a, V b) {
  V r;
  for (int i = 0; i < lanes<V>; ++i) r[i] = std::pow(a[i], b[i]);
  return r;
}
template <class V, class Half>
TG_INLINE V rounded_to(V a) {
  if constexpr (std::is_same_v<V, F64>) {
    return rounded<Half>(a);
  } else if constexpr (std::is_same_v<Half, bfloat16>) {
    return (F32)(bf16_bits(a) << 16);
  } else {
    Half h[lanes<V>];
    store(h, a);
    return load(h);
  }
}
template <class V>
TG_INLINE V truncated(V a) {
  for (int i = 0; i < lanes<V>; ++i) a[i] = std::trunc(a[i]);
  return a;
}
// The remainder of a/b with the sign of b. If the quotient q is small, a − q·b needs no rounding, and q is
// ⌊a/b⌋ or 1 more.
template <class V>
TG_INLINE V remainder_of(V a, V b) {
  const V zero = number<V>(0), q = a / b, infinite = number<V>(std::numeric_limits<double>::infinity());
#if TG_VECTOR_BYTES > 16  // with fused multiply-adds
  const auto is_small = (abs(q) < number<V>(1 << 22)) & (abs(b) < infinite);
#else
  const auto is_small = abs(b) > infinite;
#endif
  V r = fma(-floor(q), b, a);
  if (is_any(~is_small))
    for (int i = 0; i < lanes<V>; ++i)
      if (!is_small[i]) r[i] = std::fmod(a[i], b[i]);
  return select((r != zero) & ((r < zero) != (b < zero)), r + b, r);
}
// Rounds to float. The function converts a whole vector. If single elements were converted and stored as
// doubles again, GCC 12 would remove the conversion.
template <class V>
TG_INLINE V as_float(V a) {
  using Floats [[gnu::vector_size(lanes<V> * sizeof(float))]] = float;
  return __builtin_convertvector(__builtin_convertvector(a, Floats), V);
}

// Loads a vector from p if the op has this operand. Otherwise returns `other`, which the op ignores.
template <bool has, class T, class V>
TG_INLINE V load_if(const T* p, V other) {
  if constexpr (has) return load(p);
  return other;
}

// F: an op's formula.
template <class F, class T, int operands>
void block(void* out, const void* pa, const void* pb, const void* pc, i64 n) {
  using V = vector_of<T>;
  constexpr F formula;
  T* o = static_cast<T*>(out);
  const T *a = static_cast<const T*>(pa), *b = static_cast<const T*>(pb), *c = static_cast<const T*>(pc);
  i64 i = 0;
  for (; i + lanes<V> <= n; i += lanes<V>) {
    __builtin_prefetch(a + i + 1024);  // the next block: memory is read while this one is computed
    const V x = load(a + i);
    store(o + i, formula(x, load_if<(operands > 1)>(b + i, x), load_if<(operands > 2)>(c + i, x)));
  }
  if (i == n) return;
  T tail[3][lanes<V>] = {};  // the remaining elements, as a full vector
  const auto bytes = static_cast<std::size_t>(n - i) * sizeof(T);
  __builtin_memcpy(tail[0], a + i, bytes);
  if constexpr (operands > 1) __builtin_memcpy(tail[1], b + i, bytes);
  if constexpr (operands > 2) __builtin_memcpy(tail[2], c + i, bytes);
  store(tail[0], formula(load(tail[0]), load(tail[1]), load(tail[2])));
  __builtin_memcpy(o + i, tail[0], bytes);
}

template <int operands, class F>
constexpr BlockEntry on_floats(std::string_view op, F) {
  return {op, &block<F, double, operands>, &block<F, float, operands>, nullptr};
}
template <int operands, class F>
constexpr BlockEntry on_all(std::string_view op, F) {
  return {op, &block<F, double, operands>, &block<F, float, operands>, &block<F, i64, operands>};
}

// An op, the number of its operands, and its formula on vectors a, b and c of type V.
#define TG_FORMULA(formula)                                                                        \
  []<class V>(V a, [[maybe_unused]] V b, [[maybe_unused]] V c) __attribute__((always_inline))->V { \
    return formula;                                                                                \
  }
#define TG_FLOAT(op, operands, formula) on_floats<operands>(op, TG_FORMULA(formula)),
#define TG_ANY(op, operands, formula) on_all<operands>(op, TG_FORMULA(formula)),

// clang-format off
constexpr BlockEntry table[] = {
    TG_ANY("add", 2, a + b)
    TG_ANY("sub", 2, a - b)
    TG_ANY("mul", 2, a * b)
    TG_FLOAT("div", 2, a / b)
    TG_FLOAT("pow", 2, raise(a, b))
    TG_FLOAT("remainder", 2, remainder_of(a, b))
    TG_ANY("maximum", 2, select(a != a, a, select(a > b, a, b)))  // NaN in either operand gives NaN
    TG_ANY("minimum", 2, select(a != a, a, select(a < b, a, b)))
    TG_ANY("equal", 2, truth<V>(a == b))
    TG_ANY("not_equal", 2, truth<V>(a != b))
    TG_ANY("less", 2, truth<V>(a < b))
    TG_ANY("less_equal", 2, truth<V>(a <= b))
    TG_ANY("greater", 2, truth<V>(a > b))
    TG_ANY("greater_equal", 2, truth<V>(a >= b))
    TG_ANY("logical_and", 2, select(a != number<V>(0), truth<V>(b != number<V>(0)), number<V>(0)))
    TG_ANY("logical_or", 2, select(a != number<V>(0), number<V>(1), truth<V>(b != number<V>(0))))
    TG_ANY("logical_not", 1, truth<V>(a == number<V>(0)))
    TG_ANY("where", 3, select(a != number<V>(0), b, c))
    TG_ANY("copy", 1, a)
    TG_ANY("contiguous", 1, a)
    TG_ANY("cast", 1, a)
    TG_ANY("cast_bool", 1, truth<V>(a != number<V>(0)))
    TG_FLOAT("cast_i64", 1, truncated(a))
    TG_FLOAT("cast_bf16", 1, (rounded_to<V, bfloat16>(a)))
    TG_FLOAT("cast_f16", 1, (rounded_to<V, float16>(a)))
    TG_FLOAT("cast_f32", 1, as_float(a))
    TG_ANY("neg", 1, -a)
    TG_ANY("abs", 1, select(a < number<V>(0), -a, select(a == number<V>(0), number<V>(0), a)))
    TG_ANY("sign", 1, select(a > number<V>(0), number<V>(1), select(a < number<V>(0), number<V>(-1), a)))
    TG_FLOAT("floor", 1, floor(a))
    TG_FLOAT("sqrt", 1, sqrt(a))
    TG_FLOAT("rsqrt", 1, number<V>(1) / sqrt(a))
    TG_FLOAT("exp", 1, exp(a))
    TG_FLOAT("log", 1, log(a))
    TG_FLOAT("sin", 1, sin(a))
    TG_FLOAT("cos", 1, cos(a))
    TG_FLOAT("tanh", 1, tanh(a))
    TG_FLOAT("erf", 1, erf(a))
    TG_FLOAT("sigmoid", 1, sigmoid_of(a))
    TG_FLOAT("relu", 1, select(a < number<V>(0), number<V>(0), a))
    TG_FLOAT("silu", 1, silu_of(at_least(-800, a)))
    TG_FLOAT("silu_slope", 1, silu_slope_of(within(800, a)))
    TG_FLOAT("gelu_slope", 1, gelu_slope_of(within(20, a)))
    TG_FLOAT("gelu_tanh_slope", 1, gelu_tanh_slope_of(within(30, a)))
    // GELU: x·Φ(x). The tanh form is Hendrycks and Gimpel's approximation, in which (1 + tanh u)/2 = σ(2u).
    TG_FLOAT("gelu", 1, gelu_of(at_least(-20, a)))  // for a < -20, |gelu(a)| < 1e-86
    TG_FLOAT("gelu_tanh", 1, gelu_tanh_of(at_least(-30, a)))
};
// clang-format on

}  // namespace

constinit const std::span<const BlockEntry> pointwise_blocks(table);

}  // namespace tg::cpu::TG_ISA
