// exp, exp2, log, tanh, erf, sin and cos of a vector. For f32 they are branch-free polynomials with an error
// of at most 2 ulp, or 3 ulp without FMA. They handle limits, subnormals, infinities and NaN as the scalar
// functions do. For f64 they call the C library for each lane. The polynomials are minimax fits from a
// weighted Remez exchange.
#pragma once

#include <cmath>

#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

// c[0] + c[1]·x + … by Horner's rule.
TG_INLINE F32 polynomial(F32, F32 sum) {
  return sum;
}
template <class... Rest>
TG_INLINE F32 polynomial(F32 x, F32 sum, float c, Rest... rest) {
  return polynomial(x, fma(sum, x, splat<F32>(c)), rest...);
}
template <class... C>
TG_INLINE F32 horner(F32 x, float highest, C... rest) {
  return polynomial(x, splat<F32>(highest), rest...);
}

// p · 2^n, for an integral n in [-252, 254] and p near 1. Overflow gives infinity, and underflow is gradual.
TG_INLINE F32 scale_by_power(F32 p, F32 n) {
#if TG_VECTOR_BYTES == 64
  return (F32)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  const I32 k = to_int(n), half = k >> 1;  // two factors, so that neither leaves the normal range
  return p * (F32)((half + 127) << 23) * (F32)((k - half + 127) << 23);
#endif
}

TG_INLINE F32 exp2(F32 x) {
  x = max(splat<F32>(-160.f), min(splat<F32>(130.f), x));  // NaN passes both
  const F32 n = round(x), r = x - n;                       // |r| ≤ 1/2
  const F32 p = horner(r, 0x1.41fbbep-13f, 0x1.5f3e54p-10f, 0x1.3b2d4cp-7f, 0x1.c6aee8p-5f, 0x1.ebfbdcp-3f,
                       0x1.62e430p-1f, 1.f);
  return scale_by_power(p, n);
}

TG_INLINE F32 exp(F32 x) {
  x = max(splat<F32>(-105.f), min(splat<F32>(90.f), x));
  const F32 n = round(x * splat<F32>(0x1.715476p+0f));
  F32 r = fma(n, splat<F32>(-0x1.62e4p-1f),
              x);  // ln 2 in two parts; the first has 15 bits, so n times it is exact
  r = fma(n, splat<F32>(-0x1.7f7d1cp-20f), r);
  const F32 q = horner(r, 0x1.6a2446p-10f, 0x1.1239d4p-7f, 0x1.5558f2p-5f, 0x1.555492p-3f, 0x1.fffffcp-2f);
  return scale_by_power(fma(r * r, q, r) + splat<F32>(1.f), n);
}

// x = 2^e·(1 + z) with 1 + z in [√½, √2): log x = e·ln 2 + log(1 + z).
TG_INLINE F32 log(F32 x) {
  const F32 zero = {};
  const I32 tiny = x < splat<F32>(0x1p-126f);
  const F32 scaled = select(tiny, x * splat<F32>(0x1p23f), x);
  const U32 i = (U32)scaled;
  const I32 k = (I32)(i - 0x3f3504f3u) >> 23;
  const F32 z = (F32)(i - ((U32)k << 23)) - splat<F32>(1.f);
  const F32 e = to_float(k) - select(tiny, splat<F32>(23.f), zero), z2 = z * z;
  F32 y = horner(z, 0x1.114582p-4f, -0x1.de3c4ep-4f, 0x1.e6f05ep-4f, -0x1.fc21fcp-4f, 0x1.233768p-3f,
                 -0x1.555c4ep-3f, 0x1.99a4b6p-3f, -0x1.000006p-2f, 0x1.555548p-2f) *
          (z2 * z);
  y = fma(e, splat<F32>(0x1.7f7d1cp-20f), y);
  y = fma(z2, splat<F32>(-0.5f), y);
  F32 r = fma(e, splat<F32>(0x1.62e4p-1f), z + y);
  r = select(x < splat<F32>(__builtin_inff()), r, x);  // +inf and NaN are returned unchanged
  r = select(x == zero, splat<F32>(-__builtin_inff()), r);
  return select(x < zero, splat<F32>(__builtin_nanf("")), r);
}

// Computes an odd polynomial near 0, and 1 - 2/(e^(2|x|) + 1) elsewhere.
TG_INLINE F32 tanh(F32 x) {
  const F32 a = abs(x), one = splat<F32>(1.f), t = a * a;
  const F32 q = horner(t, -0x1.75e19ap-8f, 0x1.522690p-6f, -0x1.b83c58p-5f, 0x1.110726p-3f, -0x1.555532p-2f);
  const F32 small = fma(a * t, q, a);
  const F32 large = one - splat<F32>(2.f) / (exp(a + a) + one);
  return copysign(select(a < splat<F32>(0.625f), small, large), x);
}

// Computes an odd polynomial near 0, and 1 - exp(p(|x|)) elsewhere. p is fitted to log erfc.
TG_INLINE F32 erf(F32 x) {
  const F32 a = abs(x), t = a * a;
  const F32 q = horner(t, 0x1.6537bep-14f, -0x1.acb080p-11f, 0x1.550becp-8f, -0x1.b81558p-6f, 0x1.ce2e58p-4f,
                       -0x1.812744p-2f, 0x1.06eba8p-3f);
  const F32 small = fma(a, q, a), far = min(splat<F32>(3.95f), a);
  const F32 p = horner(far, 0x1.9d8454p-13f, -0x1.9080bap-9f, 0x1.6cfcacp-6f, -0x1.aa22fcp-4f,
                       -0x1.462cb6p-1f, -0x1.20b432p+0f, -0x1.7441c4p-13f);
  return copysign(select(a < splat<F32>(0.9f), small, splat<F32>(1.f) - exp(p)), x);
}

// The normal distribution function Φ(x) for x ≥ -20. It is computed as 1/(1 + 2^(x·p(x²))), with p fitted to
// log₂(Φ(-x)/Φ(x))/x for |x| ≤ 6. The error including rounding is 4.3·2⁻²⁴, or 0.3 % of Φ for small Φ.
TG_INLINE F32 normal_cdf(F32 x) {
  const F32 t = min(splat<F32>(36.f), x * x);
  const F32 p = horner(t, 6.15318151e-11f, -8.09066694e-09f, 4.29764099e-07f, -1.17230561e-05f,
                       0.000159901056f, 9.59303028e-05f, -0.104839541f, -2.30220735f);
  return reciprocal(splat<F32>(1.f) + exp2(x * p));
}

template <class V, class F>
TG_INLINE V lane_by_lane(V v, F f) {
  V r;
  for (int i = 0; i < lanes<V>; ++i) r[i] = f(v[i]);
  return r;
}

// x = n·π/2 + r. sin and cos of r are polynomials, swapped and signed by the quadrant n (+1 for the cosine).
TG_INLINE F32 sin_or_cos(F32 x, int quadrant) {
#if defined(__FMA__)
  const F32 n = round(x * splat<F32>(0x1.45f306p-1f));
  F32 r = fma(n, splat<F32>(-0x1.921fb6p+0f), x);  // exact; each further part of π/2 rounds once
  r = fma(n, splat<F32>(0x1.777a5cp-25f), r);
  r = fma(n, splat<F32>(0x1.ee59dap-50f), r);
  const I32 k = to_int(n) + quadrant;
  const F32 t = r * r;
  const F32 s = fma(r * t, horner(t, -0x1.994370p-13f, 0x1.11073ap-7f, -0x1.555546p-3f), r);
  const F32 c = fma(t * t, horner(t, 0x1.99eb34p-16f, -0x1.6c0c32p-10f, 0x1.55554ap-5f),
                    fma(t, splat<F32>(-0.5f), splat<F32>(1.f)));
  const F32 v = select((k & 1) == 0, s, c);
  return (F32)((U32)v ^ ((U32)(k & 2) << 30));
#else
  return lane_by_lane(x, [quadrant](float y) { return quadrant ? ::cosf(y) : ::sinf(y); });
#endif
}
TG_INLINE bool all_below(F32 x, float bound) {  // false if any |lane| is not below (including NaN)
  return !is_any(~(abs(x) < splat<F32>(bound)));
}
TG_INLINE F32 sin(F32 x) {
  if (__builtin_expect(all_below(x, 65536.f), 1)) return sin_or_cos(x, 0);
  return lane_by_lane(x, [](float y) { return ::sinf(y); });
}
TG_INLINE F32 cos(F32 x) {
  if (__builtin_expect(all_below(x, 65536.f), 1)) return sin_or_cos(x, 1);
  return lane_by_lane(x, [](float y) { return ::cosf(y); });
}

TG_INLINE F64 exp(F64 x) {
  return lane_by_lane(x, [](double y) { return ::exp(y); });
}
TG_INLINE F64 exp2(F64 x) {
  return lane_by_lane(x, [](double y) { return ::exp2(y); });
}
TG_INLINE F64 log(F64 x) {
  return lane_by_lane(x, [](double y) { return ::log(y); });
}
TG_INLINE F64 tanh(F64 x) {
  return lane_by_lane(x, [](double y) { return ::tanh(y); });
}
TG_INLINE F64 erf(F64 x) {
  return lane_by_lane(x, [](double y) { return ::erf(y); });
}
TG_INLINE F64 normal_cdf(F64 x) {
  return lane_by_lane(x, [](double y) { return 0.5 * ::erfc(y * -0.70710678118654752440); });
}
TG_INLINE F64 sin(F64 x) {
  return lane_by_lane(x, [](double y) { return ::sin(y); });
}
TG_INLINE F64 cos(F64 x) {
  return lane_by_lane(x, [](double y) { return ::cos(y); });
}

}  // namespace tg::cpu::TG_ISA
