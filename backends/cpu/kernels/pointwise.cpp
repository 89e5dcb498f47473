// The pointwise ops, each one line: its formula on vectors, and a row of the table below.
#include <cmath>

#include "backends/cpu/kernels/kernels.h"
#include "backends/cpu/kernels/simd.h"
#include "backends/cpu/kernels/simd_math.h"

namespace tg::cpu::TG_ISA {

namespace {

template <class V>
TG_INLINE V number(double x) {
  return splat<V>(x);
}
template <class V, class M>
TG_INLINE V truth(M mask) {  // 1 where true, else 0
  return select(mask, number<V>(1), number<V>(0));
}
template <class V>
TG_INLINE V sigmoid_of(V a) {
  return number<V>(1) / (number<V>(1) + exp(-a));
}
// Arguments beyond ±limit are taken as ±limit, or at_least -limit: there σ or Φ is 0 or 1 in f64, and at ±∞
// the formulas below would multiply 0 by ∞. NaN stays NaN.
template <class V>
TG_INLINE V at_least(double limit, V x) {
  return max(number<V>(limit), x);
}
template <class V>
TG_INLINE V within(double limit, V x) {
  return at_least(-limit, min(number<V>(limit), x));
}
// d/dx x·σ(w) = σ·(1 + x·w′·(1 - σ)) from w and v = x·w′; 1 - σ = exp(-w)·σ without cancellation, but for the
// largest exponentials, where σ is 0.
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
// Whole vectors: GCC 12 drops the conversion to float of elements that are stored as doubles again.
template <class V>
TG_INLINE V as_float(V a) {
  using Floats [[gnu::vector_size(lanes<V> * sizeof(float))]] = float;
  return __builtin_convertvector(__builtin_convertvector(a, Floats), V);
}

#define TG_UNARY(name, formula)       \
  struct name {                       \
    template <class V>                \
    static TG_INLINE V f(V a, V, V) { \
      return formula;                 \
    }                                 \
  };
#define TG_BINARY(name, formula)        \
  struct name {                         \
    template <class V>                  \
    static TG_INLINE V f(V a, V b, V) { \
      return formula;                   \
    }                                   \
  };

TG_BINARY(Add, a + b)
TG_BINARY(Sub, a - b)
TG_BINARY(Mul, a* b)
TG_BINARY(Div, a / b)
TG_BINARY(Pow, raise(a, b))
TG_BINARY(Maximum, select(a != a, a, select(a > b, a, b)))  // NaN in either operand gives NaN
TG_BINARY(Minimum, select(a != a, a, select(a < b, a, b)))
TG_BINARY(Equal, truth<V>(a == b))
TG_BINARY(NotEqual, truth<V>(a != b))
TG_BINARY(Less, truth<V>(a < b))
TG_BINARY(LessEqual, truth<V>(a <= b))
TG_BINARY(Greater, truth<V>(a > b))
TG_BINARY(GreaterEqual, truth<V>(a >= b))
TG_BINARY(LogicalAnd, select(a != number<V>(0), truth<V>(b != number<V>(0)), number<V>(0)))
TG_BINARY(LogicalOr, select(a != number<V>(0), number<V>(1), truth<V>(b != number<V>(0))))

TG_UNARY(Copy, a)
TG_UNARY(Neg, -a)
TG_UNARY(Abs, select(a < number<V>(0), -a, select(a == number<V>(0), number<V>(0), a)))
TG_UNARY(Sign, select(a > number<V>(0), number<V>(1), select(a < number<V>(0), number<V>(-1), a)))
TG_UNARY(LogicalNot, truth<V>(a == number<V>(0)))
TG_UNARY(Sqrt, sqrt(a))
TG_UNARY(Rsqrt, number<V>(1) / sqrt(a))
TG_UNARY(Exp, exp(a))
TG_UNARY(Log, log(a))
TG_UNARY(Sin, sin(a))
TG_UNARY(Cos, cos(a))
TG_UNARY(Tanh, tanh(a))
TG_UNARY(Erf, erf(a))
TG_UNARY(Sigmoid, sigmoid_of(a))
TG_UNARY(Relu, select(a < number<V>(0), number<V>(0), a))
TG_UNARY(Silu, silu_of(at_least(-800, a)))
TG_UNARY(SiluSlope, silu_slope_of(within(800, a)))
// GELU: x·Φ(x); the tanh form is Hendrycks and Gimpel's approximation, in which (1 + tanh u)/2 = σ(2u).
TG_UNARY(Gelu, gelu_of(at_least(-20, a)))  // below, it is less than 1e-86, and so is its slope
TG_UNARY(GeluSlope, gelu_slope_of(within(20, a)))
TG_UNARY(GeluTanh, gelu_tanh_of(at_least(-30, a)))
TG_UNARY(GeluTanhSlope, gelu_tanh_slope_of(within(30, a)))
TG_UNARY(ToBool, truth<V>(a != number<V>(0)))
TG_UNARY(ToInt, truncated(a))
TG_UNARY(ToBf16, (rounded_to<V, bfloat16>(a)))
TG_UNARY(ToF16, (rounded_to<V, float16>(a)))
TG_UNARY(ToF32, as_float(a))

struct Where {
  template <class V>
  static TG_INLINE V f(V a, V b, V c) {
    return select(a != number<V>(0), b, c);
  }
};

// The vector of a block's type, and its loads and stores by the names that float and double have in simd.h.
template <class T>
struct BlockVector {
  using type = vector_t<T>;
};
template <>
struct BlockVector<i64> {
  using type = I64;
};

// A vector from p if the op has such an operand, else `other`, which it ignores.
template <bool has, class T, class V>
TG_INLINE V load_if(const T* p, V other) {
  if constexpr (has) return load(p);
  return other;
}

template <class F, class T, int operands>
void block(void* out, const void* pa, const void* pb, const void* pc, i64 n) {
  using V = typename BlockVector<T>::type;
  T* o = static_cast<T*>(out);
  const T *a = static_cast<const T*>(pa), *b = static_cast<const T*>(pb), *c = static_cast<const T*>(pc);
  i64 i = 0;
  for (; i + lanes<V> <= n; i += lanes<V>) {
    __builtin_prefetch(a + i + 1024);  // the next block: memory works while this one is computed
    const V x = load(a + i);
    store(o + i, F::f(x, load_if<(operands > 1)>(b + i, x), load_if<(operands > 2)>(c + i, x)));
  }
  if (i == n) return;
  T tail[3][lanes<V>] = {};  // the last few, through a full vector
  const auto bytes = static_cast<std::size_t>(n - i) * sizeof(T);
  __builtin_memcpy(tail[0], a + i, bytes);
  if constexpr (operands > 1) __builtin_memcpy(tail[1], b + i, bytes);
  if constexpr (operands > 2) __builtin_memcpy(tail[2], c + i, bytes);
  store(tail[0], F::f(load(tail[0]), load(tail[1]), load(tail[2])));
  __builtin_memcpy(o + i, tail[0], bytes);
}

#define TG_FLOAT(op, F, operands) {op, &block<F, double, operands>, &block<F, float, operands>, nullptr},
#define TG_ANY(op, F, operands) \
  {op, &block<F, double, operands>, &block<F, float, operands>, &block<F, i64, operands>},

// clang-format off
constexpr BlockEntry table[] = {
    TG_ANY("add", Add, 2)
    TG_ANY("sub", Sub, 2)
    TG_ANY("mul", Mul, 2)
    TG_FLOAT("div", Div, 2)
    TG_FLOAT(
        "pow", Pow, 2)
    TG_ANY("maximum", Maximum, 2)
    TG_ANY("minimum", Minimum, 2)
    TG_ANY("equal", Equal, 2)
    TG_ANY("not_equal", NotEqual, 2)
    TG_ANY("less", Less, 2)
    TG_ANY("less_equal", LessEqual, 2)
    TG_ANY("greater", Greater, 2)
    TG_ANY("greater_equal", GreaterEqual, 2)
    TG_ANY("logical_and", LogicalAnd, 2)
    TG_ANY("logical_or", LogicalOr, 2)
    TG_ANY(
                    "logical_not", LogicalNot, 1)
    TG_ANY("where", Where, 3)
    TG_ANY("copy", Copy, 1)
    TG_ANY("contiguous", Copy, 1)
    TG_ANY("cast", Copy, 1)
    TG_ANY("cast_bool", ToBool, 1)
    TG_FLOAT("cast_i64", ToInt, 1)
    TG_FLOAT("cast_bf16", ToBf16, 1)
    TG_FLOAT(
                            "cast_f16", ToF16, 1)
    TG_FLOAT("cast_f32", ToF32, 1)
    TG_ANY("neg", Neg, 1)
    TG_ANY("abs", Abs, 1)
    TG_ANY("sign", Sign, 1)
    TG_FLOAT("sqrt", Sqrt, 1)
    TG_FLOAT("rsqrt", Rsqrt, 1)
    TG_FLOAT("exp", Exp, 1)
    TG_FLOAT("log", Log, 1)
    TG_FLOAT("sin", Sin, 1)
    TG_FLOAT("cos", Cos, 1)
    TG_FLOAT("tanh", Tanh, 1)
    TG_FLOAT("erf", Erf, 1)
    TG_FLOAT("sigmoid", Sigmoid, 1)
    TG_FLOAT("relu", Relu, 1)
    TG_FLOAT("silu", Silu, 1)
    TG_FLOAT("silu_slope", SiluSlope, 1)
    TG_FLOAT("gelu_slope", GeluSlope, 1)
    TG_FLOAT("gelu_tanh_slope", GeluTanhSlope, 1)
    TG_FLOAT("gelu", Gelu, 1)
    TG_FLOAT("gelu_tanh", GeluTanh, 1)
};
// clang-format on

}  // namespace

constinit const std::span<const BlockEntry> pointwise_blocks(table);

}  // namespace tg::cpu::TG_ISA
