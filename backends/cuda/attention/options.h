// Variants for which tensor-core kernels are compiled. They differ in element types, head sizes, and score
// modifications other than a mask and a positive factor. The functions here call f with a call's values as
// compile-time constants.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "ops/attention_call.h"

namespace tg::cuda::attention {

enum Options { none, only_dropout, any };  // each variant also handles the cases of the previous ones

// Whether dropout is applied to P.
template <Options options>
TG_HOST_DEVICE constexpr bool drops(const AttentionCall& x) {
  return options == only_dropout || (options == any && x.dropout > 0);
}

// Wide heads have size > 128.
inline bool is_wide(const AttentionCall& x) {
  return x.d > 128 || x.dv > 128;
}

// Whether q·k may be compared instead of scores. Without a bias, the scores are then q·k times a positive
// factor.
TG_HOST_DEVICE inline bool has_plain_scores(const AttentionCall& x) {
  return x.softcap == 0 && static_cast<float>(x.scale) > 0;
}

// Whether different queries may see different numbers of keys.
inline bool is_uneven(const AttentionCall& x) {
  return x.causal || x.window_left >= 0 || x.window_right >= 0 || x.lengths || x.cu_q;
}

template <auto value>
using constant = std::integral_constant<decltype(value), value>;

// Calls f with the first of the ascending constants that is ≥ `value`. If there is none, calls it with the
// last constant.
template <auto first, auto... more, class V, class F>
auto with_constant(V value, F&& f) {
  if constexpr (sizeof...(more) > 0)
    if (value > first) return with_constant<more...>(value, f);
  return f(constant<first>());
}
// Padded size of v in kernels whose q and k have padded size `size`.
constexpr int values_beside(int size) {
  return size == 192 ? 128 : size == 576 ? 512 : size;
}
// Calls f with the padded sizes D and DV and with the variant. `sizes` lists the values of D. Wide heads have
// only the variants `none` and `any`.
template <int... sizes, class F>
auto with_shape(const AttentionCall& x, F&& f) {
  const int size = std::max(x.d, x.dv), least = size <= 192 && x.dv > 128 ? 256 : size;
  const bool simple = has_plain_scores(x) && !x.bias.data;
  const Options needed = !simple ? any : x.dropout > 0 ? only_dropout : none;
  return with_constant<sizes...>(least, [&](auto d) {
    return with_constant<none, only_dropout, any>(needed, [&](auto options) {
      return f(d, constant<values_beside(d)>(), constant<(d <= 128 || options == none ? options : any)>());
    });
  });
}
// Calls f with a zero of the 16-bit type, bf16 or f16.
auto with_16_bits(DType type, auto&& f) {
  return type == DType::bf16 ? f(__nv_bfloat16()) : f(__half());
}

}  // namespace tg::cuda::attention
