// The functions of elementwise ops as CUDA C++ for the run-time compiler. The compute type T is double, float
// or long long; true is 1. minimum, maximum, abs and sign propagate NaN as on the CPU.
#pragma once

namespace tg::cuda {

inline constexpr const char* pointwise_source = R"(
typedef long long i64;
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };

__device__ float widen(float x) { return x; }
__device__ double widen(double x) { return x; }
__device__ float widen(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
__device__ float widen(f16 x) { return float_of_f16(x.bits); }
__device__ i64 widen(i64 x) { return x; }
__device__ i64 widen(int x) { return x; }
__device__ i64 widen(unsigned char x) { return x; }
__device__ i64 widen(bool x) { return x; }

template <class S> struct narrow { template <class T> static S of(T x) { return (S)x; } };
template <> struct narrow<bool> { template <class T> static bool of(T x) { return x != T(0); } };
// odd_float of core/base/dtype.h: a conversion to a 16-bit type rounds only once, whatever the source type.
__device__ float odd_float(float x) { return x; }
__device__ float odd_float(double x) {
  const float nearest = (float)x;
  const double back = nearest, magnitude = x < 0 ? -x : x, reached = back < 0 ? -back : back;
  unsigned u = __float_as_uint(nearest);
  u -= reached > magnitude;
  u |= (reached > magnitude) | (back < x) | (back > x);
  return __uint_as_float(u);
}
__device__ float odd_float(i64 x) {
  if ((x >> 53) != 0 && (x >> 53) != -1 && (x & 2047) != 0) x = (x & ~2047ll) | 2048;
  return odd_float((double)x);
}
template <> struct narrow<bf16> { template <class T> static bf16 of(T x) {
  bf16 y; y.bits = bf16_of(odd_float(x)); return y; } };
template <> struct narrow<f16> { template <class T> static f16 of(T x) {
  f16 y; y.bits = f16_of(odd_float(x)); return y; } };
template <> struct narrow<unsigned char> { template <class T> static unsigned char of(T x) { return (unsigned char)(i64)x; } };

template <class T> T op_add(T a, T b) { return a + b; }
template <class T> T op_sub(T a, T b) { return a - b; }
template <class T> T op_mul(T a, T b) { return a * b; }
template <class T> T op_div(T a, T b) { return a / b; }
template <class T> T op_pow(T a, T b) { return pow(a, b); }
// The same for a result in a 16-bit type: before rounding, the error is below 0.1 ulp of that type. The
// hardware's log2 has an absolute error of 2⁻²². Near 1 that is too inaccurate, because the result is small.
template <class T> T op_pow_half(T base, T exponent) {
  const float a = base, b = exponent, x = fabsf(a), f = x - 1.f;
  const float near_one = f * fmaf(f, fmaf(f, fmaf(f, fmaf(f, 0.288539f, -0.360674f), 0.480898f), -0.721348f), 1.442695f);
  float y = exp2f(b * (fabsf(f) < 0.0625f ? near_one : __log2f(x)));
  if (b == 0.f || a == 1.f) y = 1.f;
  if (__float_as_int(a) < 0) {
    const bool whole = b == truncf(b), odd = whole && fabsf(b) < 16777216.f && ((int)b & 1);
    if (x == 1.f && whole) y = 1.f;
    if (odd) y = -y;
    if (!whole && a < 0.f && x < __int_as_float(0x7f800000)) y = __int_as_float(0x7fc00000);
  }
  return y;
}
template <class T> T op_remainder(T a, T b) {
  const T r = fmod(a, b);
  return r != T(0) && (r < T(0)) != (b < T(0)) ? r + b : r;
}
template <class T> T op_maximum(T a, T b) { return a != a ? a : a > b ? a : b; }
template <class T> T op_minimum(T a, T b) { return a != a ? a : a < b ? a : b; }
template <class T> T op_equal(T a, T b) { return T(a == b); }
template <class T> T op_not_equal(T a, T b) { return T(a != b); }
template <class T> T op_less(T a, T b) { return T(a < b); }
template <class T> T op_less_equal(T a, T b) { return T(a <= b); }
template <class T> T op_greater(T a, T b) { return T(a > b); }
template <class T> T op_greater_equal(T a, T b) { return T(a >= b); }
template <class T> T op_logical_and(T a, T b) { return T(a != T(0) && b != T(0)); }
template <class T> T op_logical_or(T a, T b) { return T(a != T(0) || b != T(0)); }
template <class T> T op_logical_not(T a) { return T(a == T(0)); }
template <class T> T op_where(T a, T b, T c) { return a != T(0) ? b : c; }
template <class T> T op_copy(T a) { return a; }
template <class T> T op_contiguous(T a) { return a; }
template <class T> T op_cast(T a) { return a; }
template <class T> T op_cast_bool(T a) { return T(a != T(0)); }
template <class T> T op_cast_i64(T a) { return trunc(a); }
template <class T> T op_cast_bf16(T a) { return T(widen(narrow<bf16>::of(a))); }
template <class T> T op_cast_f16(T a) { return T(widen(narrow<f16>::of(a))); }
template <class T> T op_cast_f32(T a) { return T(float(a)); }
template <class T> T op_neg(T a) { return -a; }
template <class T> T op_abs(T a) { return a < T(0) ? -a : a == T(0) ? T(0) : a; }
template <class T> T op_sign(T a) { return a > T(0) ? T(1) : a < T(0) ? T(-1) : a; }
template <class T> T op_floor(T a) { return floor(a); }
template <class T> T op_sqrt(T a) { return sqrt(a); }
template <class T> T op_rsqrt(T a) { return T(1) / sqrt(a); }
template <class T> T op_exp(T a) { return exp(a); }
template <class T> T op_log(T a) { return log(a); }
template <class T> T op_sin(T a) { return sin(a); }
template <class T> T op_cos(T a) { return cos(a); }
template <class T> T op_tanh(T a) { return tanh(a); }
template <class T> T op_erf(T a) { return erf(a); }
__device__ float inverse(float x) { return __fdividef(1.f, x); }  // error at most 2 ulp; 0 for 2¹²⁶ or more
__device__ double inverse(double x) { return 1 / x; }
template <class T> T op_sigmoid(T a) { return inverse(T(1) + exp(-a)); }
template <class T> T op_relu(T a) { return a < T(0) ? T(0) : a; }
// Values beyond ±limit count as ±limit, as on the CPU. At ±∞, the formulas below would compute 0·∞. NaN stays
// NaN.
template <class T> T at_least(T limit, T a) { return a < limit ? limit : a; }
template <class T> T within(T limit, T a) { return a > limit ? limit : at_least(-limit, a); }
template <class T> T op_silu(T a) { const T x = at_least(T(-800), a); return x * inverse(T(1) + exp(-x)); }
// σ(w)·(1 + v·(1 − σ(w))): the derivative of x·σ(w) with respect to x, where v is x times the derivative of w.
template <class T> T slope_of(T v, T w) {
  const T e = exp(-w), s = inverse(T(1) + e);
  return s * (v * ((e < T(1e38) ? e : T(1e38)) * s) + T(1));
}
template <class T> T op_silu_slope(T a) { const T x = within(T(800), a); return slope_of(x, x); }
// Same as normal_cdf of backends/cpu/kernels/simd_math.h, with the same error. normcdff takes five times as
// long.
__device__ float cdf(float x) {
  const float t = fminf(36.f, x * x);
  float p = 6.15318151e-11f;
  p = fmaf(p, t, -8.09066694e-09f), p = fmaf(p, t, 4.29764099e-07f), p = fmaf(p, t, -1.17230561e-05f);
  p = fmaf(p, t, 0.000159901056f), p = fmaf(p, t, 9.59303028e-05f), p = fmaf(p, t, -0.104839541f);
  p = fmaf(p, t, -2.30220735f);
  return inverse(1.f + exp2f(x * p));
}
__device__ double cdf(double x) { return normcdf(x); }
template <class T> T op_gelu(T a) { const T x = at_least(T(-20), a); return x * cdf(x); }
template <class T> T op_gelu_slope(T a) {
  const T x = within(T(20), a);
  return x * T(0.39894228040143267794) * exp(x * x * T(-0.5)) + cdf(x);
}
template <class T> T twice_u(T x) { return T(1.59576912160573071176) * x * (x * x * T(0.044715) + T(1)); }
template <class T> T twice_du(T x) { return T(1.59576912160573071176) * (x * x * T(3 * 0.044715) + T(1)); }
template <class T> T op_gelu_tanh(T a) { const T x = at_least(T(-30), a); return x * op_sigmoid(twice_u(x)); }
template <class T> T op_gelu_tanh_slope(T a) {
  const T x = within(T(30), a);
  return slope_of(x * twice_du(x), twice_u(x));
}
// The same for a result in a 16-bit type (as in gelu.cuh), in half the instructions. log2 of Φ(−a) is a
// polynomial. The relative error of Φ is at most 2.3e-5 for a ≤ 5, 1e-4 for a ≤ 7 and 2e-3 (the rounding
// error of bf16) for a ≤ 9.
__device__ float lower_tail(float a) {
  float p = -1.3646127e-06f;
  p = fmaf(p, a, 5.1139323e-05f), p = fmaf(p, a, -0.00083962665f), p = fmaf(p, a, 0.008118628f);
  p = fmaf(p, a, -0.05311216f), p = fmaf(p, a, -0.45932722f), p = fmaf(p, a, -1.1509441f);
  return exp2f(fmaf(p, a, -1.f));
}
__device__ float size_of(float x) { return fabsf(x) > 12.5f ? 12.5f : fabsf(x); }
template <class T> T op_gelu_half(T x) {
  const float a = size_of(x);
  return fmaf(-a, lower_tail(a), fmaxf(x, 0.f));
}
template <class T> T op_gelu_slope_half(T x) {
  const float a = size_of(x), density = exp2f(fmaf(a * a, -0.72134752f, -1.3257481f));
  return 0.5f + copysignf(0.5f - fmaf(-a, density, lower_tail(a)), x);
}
__device__ float gate(float x) { return inverse(1.f + exp2f(x * fmaf(x * x, -0.10294324f, -2.3022082f))); }
template <class T> T op_gelu_tanh_half(T a) { const float x = at_least(-30.f, (float)a); return x * gate(x); }
template <class T> T op_gelu_tanh_slope_half(T a) {
  const float x = within(30.f, (float)a), s = gate(x);
  return fmaf(fmaf(-s, s, s), x * fmaf(x * x, 0.21406445f, 1.5957691f), s);
}
)";

}  // namespace tg::cuda
