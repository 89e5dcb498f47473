// Computes the scores of a head from q·k: scale, softcap and bias. Contains the power-of-two scaling of split
// operands, too (Powers in workspace.h).
#pragma once

#include <cmath>

#include "backends/cuda/attention/workspace.h"
#include "backends/cuda/kernels/elements.cuh"
#include "backends/cuda/tile/accumulator.cuh"

namespace tg::cuda::attention {

constexpr double log2_e = 1.4426950408889634074, ln_2 = 0.69314718055994530942;

// factor_of(): the factor of q·k. With a softcap, tanh is applied to the product. Without one, the product is
// the score in units of log 2. cap_of(): the softcap in units of log 2.
TG_HOST_DEVICE inline double factor_of(const AttentionCall& x) {
  return x.softcap != 0 ? x.scale / x.softcap : x.scale * log2_e;
}
TG_HOST_DEVICE inline double cap_of(const AttentionCall& x) {
  return x.softcap * log2_e;
}

// Represents x as a sum of two floats.
TG_HOST_DEVICE inline float2 two_floats(double x) {
  const float high = static_cast<float>(x);
  return {high, static_cast<float>(x - high)};
}

// Units of scores in kernels without a bias. These kernels compare and subtract scores before they convert
// them. `exponent` converts scores to exponents of 2, `natural` converts them to A. Plain scores are q·k,
// others are in units of log 2.
struct Units {
  float exponent;
  float2 natural;

  // Converts a sink to these units.
  __device__ __forceinline__ float of(float a) const { return a / natural.x; }
};
TG_HOST_DEVICE inline Units units_of(const AttentionCall& x) {
  if (has_plain_scores(x)) return {static_cast<float>(factor_of(x)), two_floats(x.scale)};
  return {1, two_floats(ln_2)};
}

// The value of one unit of the exponents of 2. For plain scores, these exponents are q·k times the rounded
// factor. The unit is then log 2, except for the rounding of that factor.
TG_HOST_DEVICE inline float2 unit_of_exponents(const AttentionCall& x) {
  if (!has_plain_scores(x)) return two_floats(ln_2);
  const float2 scale = two_floats(x.scale);
  const float factor = static_cast<float>(factor_of(x)), high = scale.x / factor;
  return {high, (scale.y - fmaf(high, factor, -scale.x)) / factor};
}

// ξ = c·unit + log π, as a rounded value and the remainder. c is given as a sum of two floats.
__device__ __forceinline__ float2 split_lse(float2 c, float log_pi, float2 unit) {
  const float more = fmaf(c.y, unit.x, log_pi), value = fmaf(c.x, unit.x, more);
  return {value, fmaf(c.x, unit.x, -value) + fmaf(c.x, unit.y, more)};
}
// A positive normal float as mantissa·power, where the mantissa is in [1/2, 1) and `power` is a power of two.
// Also returns 1 / power.
struct MantissaAndPower {
  float mantissa, power, inverse;
};
TG_HOST_DEVICE inline MantissaAndPower parts_of(float x) {
#if defined(__CUDA_ARCH__)
  const unsigned bits = __float_as_uint(x), power = (bits & 0x7f800000u) + 0x00800000u;
  return {__uint_as_float((bits & 0x007fffffu) | 0x3f000000u), __uint_as_float(power),
          __uint_as_float(0x7f000000u - power)};
#else
  int exponent = 0;
  const float mantissa = std::frexp(x, &exponent);
  return {mantissa, std::ldexp(1.f, exponent), std::ldexp(1.f, -exponent)};
#endif
}

// 2ᵉ. If e is outside −126 … 127, the nearest power of two that is a normal float.
__device__ __forceinline__ float power_of_two(int e) {
  return __int_as_float((min(max(e, -126), 127) + 127) << 23);
}
// x ⋅ 2ᵉ, even if 2ᵉ is outside the range of a float.
__device__ __forceinline__ float times_power_of_two(float x, int e) {
  return x * power_of_two(e / 2) * power_of_two(e - e / 2);
}
// sums ← sums ⋅ factor ⋅ 2ᵉ
__device__ __forceinline__ void scale(auto& sums, float factor, int e) {
  const float first = factor * power_of_two(e / 2), second = power_of_two(e - e / 2);
  tile::for_each(sums, [&](int, int, float& x) { x = x * first * second; });
}

// Converts q·k to scores for one head.
template <class S>
struct Score {
  using C = compute_t<S>;
  C factor, cap;
  const S* bias;
  i64 bias_row, bias_col;

  // Scores are A itself, because a bias in units of log 2 might overflow.
  __device__ Score(const AttentionCall& x, int b, int h)
      : factor(static_cast<C>(x.softcap != 0 ? x.scale / x.softcap : x.scale)),
        cap(static_cast<C>(x.softcap)),
        bias(x.bias.data ? static_cast<const S*>(x.bias.data) + b * x.bias.batch + h * x.bias.head : nullptr),
        bias_row(x.bias.row),
        bias_col(x.bias.col) {}

  // The case without a bias. Scores are in units of log 2.
  __device__ Score(C factor, C cap) : factor(factor), cap(cap), bias(nullptr), bias_row(0), bias_col(0) {}

  // Returns has_plain_scores() of a call without a bias.
  __device__ __forceinline__ bool is_plain() const { return cap == 0 && factor > 0; }
  // The score of query i and key j, and the softcap's derivative in `slope`. `inside` states whether the bias
  // has this element.
  __device__ C of(C s, int i, int j, bool inside, C* slope) const {
    s *= factor;
    *slope = 1;
    if (cap != 0) {
      const C t = tanh(s);
      s = cap * t;
      *slope = 1 - t * t;
    }
    if (bias && inside) s += widen(bias[i * bias_row + j * bias_col]);
    return s;
  }
  // For kernels of variant `options`: scores are A for `any`, otherwise q·k. `factor` converts q·k to units
  // of log 2.
  template <Options options>
  __device__ static Score of_call(const AttentionCall& x, int b, int h) {
    if constexpr (options == any)
      return Score(x, b, h);
    else
      return Score(static_cast<C>(factor_of(x)), C(0));
  }
  // The factor that converts such a score to an exponent of 2.
  template <Options options>
  __device__ __forceinline__ C exponent() const {
    return options == any ? static_cast<C>(log2_e) : factor;
  }
  // The softcap's derivative, recovered from P = exp2(s − lse) without a bias. `inverse` is 1 / cap.
  __device__ __forceinline__ static C slope_of(C p, C lse, C inverse) {
    const C t = fmin(fabs((tile::log2_fast(p) + lse) * inverse), C{1});
    return 1 - t * t;
  }
  // Converts a tile of q·k to scores in place, without a bias. `fast` computes tanh x = 1 − 2 /
  // (exp(2·x) + 1) with a quarter of the instructions. Its error is 2⁻²¹ of the cap, below the rounding of
  // 16-bit operands.
  template <bool fast = false>
  __device__ __forceinline__ void apply(auto& s) const {
    if constexpr (fast) {
      if (cap == 0) return tile::scale(s, factor);
      const float twice = factor * static_cast<float>(2 * log2_e);
      tile::for_each(
          s, [&](int, int, float& a) { a = fmaf(-2 * cap, ptx::rcp(tile::exp2_fast(a * twice) + 1), cap); });
    } else {
      tile::for_each(s, [&](int, int, float& a) {
        float slope;
        a = of(a, 0, 0, false, &slope);
      });
    }
  }
  // Converts a tile whose first query is i0 and first key is j0 in place.
  __device__ __forceinline__ void apply(auto& s, const AttentionCall& x, int i0, int j0) const {
    tile::for_each(s, [&](int r, int c, float& a) {
      const int i = i0 + s.row(r) + tile::lane_row(), j = j0 + s.column(c) + tile::lane_column();
      float slope;
      a = of(a, i, j, i < x.L && j < x.T, &slope);
    });
  }
};

}  // namespace tg::cuda::attention
