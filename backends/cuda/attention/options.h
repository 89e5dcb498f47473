// What a kernel on tensor cores does to scores beyond a mask and a positive factor, as a constant, and the
// head sizes that kernels are compiled for.
#pragma once

#include <type_traits>

#include "ops/attention_call.h"

namespace tg::cuda::attention {

enum Options { none, only_dropout, any };

// Whether P is dropped from.
template <Options options>
TG_HOST_DEVICE constexpr bool drops(const AttentionCall& x) {
  return options == only_dropout || (options == any && x.dropout > 0);
}

// Wide heads are those beyond 128.
inline bool is_wide(const AttentionCall& x) {
  return x.d > 128 || x.dv > 128;
}

template <int n>
using constant = std::integral_constant<int, n>;

// Calls f with the options as a constant.
template <class F>
auto with_options(const AttentionCall& x, F&& f) {
  if (x.softcap != 0 || x.bias.data || x.scale <= 0) return f(std::integral_constant<Options, any>());
  return x.dropout > 0 ? f(std::integral_constant<Options, only_dropout>())
                       : f(std::integral_constant<Options, none>());
}
// Calls f with the least of `sizes` that d and dv are padded to.
template <int size, int... more, class F>
auto with_size(const AttentionCall& x, F&& f) {
  if constexpr (sizeof...(more) > 0)
    if (x.d > size || x.dv > size) return with_size<more...>(x, f);
  return f(constant<size>());
}
// Calls f with the sizes that wide d and dv are padded to.
template <class F>
auto with_wide_sizes(const AttentionCall& x, F&& f) {
  if (x.d <= 192 && x.dv <= 128) return f(constant<192>(), constant<128>());
  if (x.d <= 256 && x.dv <= 256) return f(constant<256>(), constant<256>());
  return f(constant<576>(), constant<512>());
}

}  // namespace tg::cuda::attention
