// max, min, argmax and argmin over any axes. A NaN counts as the extreme. Among equal elements, argmax and
// argmin return the first in row-major order of the reduced axes.
#include "backends/cuda/kernels/reduce_held.cuh"

namespace tg::cuda {

namespace {

// Whether a, and not b, is the maximum.
template <class C>
__device__ __forceinline__ bool beats(C a, C b) {
  if constexpr (std::is_same_v<C, i64>)
    return a > b;
  else
    return a > b || (a != a && b == b);
}
template <class C>
__device__ __forceinline__ C least() {
  if constexpr (std::is_same_v<C, i64>)
    return LLONG_MIN;
  else
    return static_cast<C>(-__builtin_huge_val());
}

// The values. If `flip`, they are negated, which reverses their order.
template <class S, int V>
__device__ __forceinline__ Words<S, V> negated_if(Words<S, V> words, bool flip) {
  const unsigned signs = !flip ? 0 : sizeof(S) == 2 ? 0x80008000u : 0x80000000u;
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(words) / 4); ++i)
    if (sizeof(S) < 8 || i % 2 == 1) words.at[i] ^= signs;
  return words;
}

template <class C>
struct Max {
  using State = C;
  static __device__ __forceinline__ C init() { return least<C>(); }
  static __device__ __forceinline__ C merge(C a, C b) {
    if constexpr (std::is_same_v<C, float>)
      return ptx::max_nan(a, b);
    else
      return beats(b, a) ? b : a;
  }
  static __device__ __forceinline__ void add(C& s, C v, i64) { s = merge(s, v); }
  static __device__ __forceinline__ C finish(C s) { return s; }

  // The extreme of this thread's elements. 16-bit elements are compared in pairs.
  template <class S, int V>
  static __device__ __forceinline__ C of_words(Words<S, V> words) {
    if constexpr (sizeof(S) == 2 && V > 2) {
#pragma unroll
      for (int i = 1; i < V / 2; ++i)
        words.at[0] = std::is_same_v<S, __half> ? ptx::max_nan_f16x2(words.at[0], words.at[i])
                                                : ptx::max_nan_bf16x2(words.at[0], words.at[i]);
      return of_words(Words<S, 2>{words.at[0]});
    } else {
      C x[V];
      unpack(words, x);
#pragma unroll
      for (int e = 1; e < V; ++e) x[0] = merge(x[0], x[e]);
      return x[0];
    }
  }
  template <class Row>
  static __device__ __forceinline__ C of_thread(const Row& row, bool flip) {
    C top = init();
    row.each_words([&](const auto& words, int) { top = merge(top, of_words(negated_if(words, flip))); });
    return top;
  }
  template <class T, class Row>
  static __device__ __forceinline__ C of_row(T& team, const Row& row, bool flip) {
    return team.reduce(of_thread(row, flip), merge);
  }
};

template <class C>
struct ArgMax {
  struct State {
    C value;
    i64 index;
  };
  static __device__ __forceinline__ State init() { return {least<C>(), LLONG_MAX}; }
  static __device__ __forceinline__ State merge(const State& a, const State& b) {
    const bool second = beats(b.value, a.value) || (!beats(a.value, b.value) && b.index < a.index);
    return second ? b : a;
  }
  static __device__ __forceinline__ void add(State& s, C v, i64 i) { s = merge(s, {v, i}); }
  static __device__ __forceinline__ i64 finish(const State& s) { return s.index; }

  static __device__ __forceinline__ bool same(C a, C b) { return a == b || (a != a && b != b); }
  // First finds the extreme, and then the first element that equals it. Only a few threads have to search for
  // this element.
  template <class T, class Row>
  static __device__ __forceinline__ State of_row(T& team, const Row& row, bool flip) {
    const C own = Max<C>::of_thread(row, flip), top = team.reduce(own, Max<C>::merge);
    int index = INT_MAX;
    if (same(own, top))
      row.each_words([&](const auto& words, int first) {
        C x[Row::V];
        unpack(negated_if(words, flip), x);
#pragma unroll
        for (int e = 0; e < Row::V; ++e)
          if (same(x[e], top)) index = min(index, first + e);
      });
    return {top, team.reduce(index, [](int a, int b) { return a < b ? a : b; })};
  }
};

// Elements in reversed order, for minima.
template <class Source>
struct Flipped : Source {
  bool flip;
  template <int V>
  __device__ __forceinline__ void load(i64 at, typename Source::value (&v)[V]) const {
    Source::load(at, v);
#pragma unroll
    for (int e = 0; e < V; ++e) v[e] = flip ? flipped(v[e]) : v[e];
  }
};

template <template <class> class R, bool packs, bool minimum>
void run_extreme(const Stream& s, const Call& c) {
  const ReducePlan p = reduce_plan(c, !packs);
  if (p.outs == 0) return;
  const Arg &x = c.in[0], &y = c.out[0];
  const bool flip = minimum && packs;  // the results of argmin are indices, which stay unchanged
  if (!is_float(x.dtype))
    return reduce<R<i64>, 1>(s, p, Flipped<Integers>{{x.data, x.dtype}, minimum},
                             {nullptr, y.data, y.dtype, 1, flip});
  with_float(x.dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    using Kind = R<compute_t<S>>;
    const Results<Kind> out{nullptr, y.data, y.dtype, 1, flip};
    if (reduce_held<Kind, S>(s, p, x.data, out, minimum)) return;
    reduce<Kind, packs ? pack_of<S> : 1>(
        s, p, Flipped<Elements<S>>{{reinterpret_cast<const S*>(x.data)}, minimum}, out);
  });
}

std::size_t value_workspace(const Call& c) {
  return partial_bytes<Max<i64>>(reduce_plan(c));
}
std::size_t index_workspace(const Call& c) {
  return partial_bytes<ArgMax<i64>>(reduce_plan(c, true));
}

}  // namespace

extern const Kernel max_kernel{&run_extreme<Max, true, false>, &value_workspace};
extern const Kernel min_kernel{&run_extreme<Max, true, true>, &value_workspace};
extern const Kernel argmax_kernel{&run_extreme<ArgMax, false, false>, &index_workspace};
extern const Kernel argmin_kernel{&run_extreme<ArgMax, false, true>, &index_workspace};

}  // namespace tg::cuda
