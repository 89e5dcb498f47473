// What kernels on tensor cores are compiled for: element types, head sizes, and what they do to scores beyond
// a mask and a positive factor. The functions here call f with what a call needs of it, as constants.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <type_traits>

#include "ops/attention_call.h"

namespace tg::cuda::attention {

enum Options { none, only_dropout, any };  // each does what those before it do

// Whether P is dropped from.
template <Options options>
TG_HOST_DEVICE constexpr bool drops(const AttentionCall& x) {
  return options == only_dropout || (options == any && x.dropout > 0);
}

// Wide heads are those beyond 128.
inline bool is_wide(const AttentionCall& x) {
  return x.d > 128 || x.dv > 128;
}

template <auto value>
using constant = std::integral_constant<decltype(value), value>;

// The first of rising constants that is not below `value`, or the last.
template <auto first, auto... more, class V, class F>
auto with_constant(V value, F&& f) {
  if constexpr (sizeof...(more) > 0)
    if (value > first) return with_constant<more...>(value, f);
  return f(constant<first>());
}
template <class F>
auto with_options(const AttentionCall& x, F&& f) {
  const bool other = x.softcap != 0 || x.bias.data || x.scale <= 0;
  return with_constant<none, only_dropout, any>(other ? any : x.dropout > 0 ? only_dropout : none, f);
}
// The size that d and dv up to 128 are padded to. 96 is left out where it would only take long to compile: of
// the backward in two passes, which few or short sequences take, and of f32.
template <class F>
auto with_size(const AttentionCall& x, F&& f) {
  return with_constant<32, 64, 128>(std::max(x.d, x.dv), f);
}
// The sizes that any d and dv are padded to, for both one of `narrow` unless the head is wide.
template <int... narrow, class F>
auto with_sizes(const AttentionCall& x, F&& f) {
  if (!is_wide(x))
    return with_constant<narrow...>(std::max(x.d, x.dv), [&](auto size) { return f(size, size); });
  if (x.d <= 192 && x.dv <= 128) return f(constant<192>(), constant<128>());
  if (x.d <= 256 && x.dv <= 256) return f(constant<256>(), constant<256>());
  return f(constant<576>(), constant<512>());
}
// A zero of the type, bf16 or f16.
template <class F>
auto with_16_bits(DType type, F&& f) {
  return type == DType::bf16 ? f(__nv_bfloat16()) : f(__half());
}

}  // namespace tg::cuda::attention
