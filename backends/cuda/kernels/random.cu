// Random ops from Philox words, in the order that core/base/rng.h and core/base/random.h define. Compiled
// without FMA contraction, so that results are bitwise identical to the CPU's.
#include <tilegrad/core/base/random.h>
#include <tilegrad/ops/flash_attn.h>
#include "backends/cuda/kernels/any.cuh"
#include "backends/cuda/kernels/region.cuh"
#include "ops/random.h"

namespace tg::cuda {

namespace {

// The graph's random state {seed, step}, and the number of the node.
struct Source {
  const i64* state;
  i64 stride;
  std::uint32_t node;

  Source(const Arg& rng, std::uint64_t stream)
      : state(reinterpret_cast<const i64*>(rng.data)),
        stride(rng.layout.strides[0]),
        node(static_cast<std::uint32_t>(stream)) {}
  __device__ std::uint64_t key() const {
    return node_key(static_cast<std::uint64_t>(state[0]), static_cast<std::uint64_t>(state[stride]), node);
  }
};

__device__ __forceinline__ PhiloxBlock words_of(std::uint64_t block, std::uint64_t key) {
  return philox(element_counter(block), key);
}

// A thread processes several elements, because the key takes as long to compute as four elements.
unsigned grid_for(const Stream& s, i64 threads) {
  const i64 most = 32ll * s.gpu.processors, blocks = (threads + threads_per_block - 1) / threads_per_block;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}
__device__ __forceinline__ i64 all_threads() {
  return static_cast<i64>(gridDim.x) * threads_per_block;
}

// Computes V elements, starting at index i·V. An element is x·scale if its word is at or above the bound,
// otherwise 0.
template <class C, int V>
__device__ __forceinline__ void drop_pack(C (&x)[V], std::uint64_t i, std::uint64_t key, std::uint32_t bound,
                                          C scale) {
#pragma unroll
  for (int b = 0; b < V / 4; ++b) {
    const PhiloxBlock words = words_of(i * (V / 4) + static_cast<std::uint64_t>(b), key);
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      C& e = x[4 * b + w];
      e = words[w] >= bound ? e * scale : C{0};
    }
  }
}

// Processes consecutive packs of V. The next pack is loaded while the words for the current pack are
// computed.
template <class S, int V>
__global__ void __launch_bounds__(threads_per_block)
    drop_dense(Words<S, V>* y, const Words<S, V>* x, i64 packs, Source source, std::uint32_t bound,
               compute_t<S> scale) {
  begin_early();
  const std::uint64_t key = source.key();
  i64 i = thread_number<i64>();
  Words<S, V> next{};
  if (i < packs) next = x[i];
  while (i < packs) {
    const Words<S, V> now = next;
    const i64 further = i + all_threads();
    if (further < packs) next = x[further];
    compute_t<S> e[V];
    unpack(now, e);
    drop_pack(e, static_cast<std::uint64_t>(i), key, bound, scale);
    y[i] = packed<S>(e);
    i = further;
  }
}

// Processes operands with any strides, four elements at a time.
template <class S>
__global__ void __launch_bounds__(threads_per_block)
    drop(S* y, const S* x, i64 first, i64 numel, const __grid_constant__ Region<1> from, Source source,
         std::uint32_t bound, compute_t<S> scale) {
  begin_early();
  const std::uint64_t key = source.key();
  for (i64 i = thread_number<i64>() + first / 4; i * 4 < numel; i += all_threads()) {
    const i64 start = i * 4;
    compute_t<S> e[4] = {};
    for (int k = 0; k < 4; ++k)
      if (start + k < numel) e[k] = widen(x[offset_in(from, static_cast<unsigned long long>(start + k))]);
    drop_pack(e, static_cast<std::uint64_t>(i), key, bound, scale);
    for (int k = 0; k < 4; ++k)
      if (start + k < numel) y[start + k] = narrow<S>(e[k]);
  }
}

void launch_dropout(const Stream& s, const Call& c) {
  const auto& d = c.attrs->as<DropoutAttrs>();
  const Arg &x = c.in[0], &y = c.out[0];
  const i64 numel = y.layout.numel();
  if (numel == 0) return;
  with_float(y.dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    using C = compute_t<S>;
    constexpr int V = sizeof(S) == 2 ? 8 : 4;
    const auto aligned = [](const Arg& a) { return reinterpret_cast<std::uintptr_t>(a.data) % 16 == 0; };
    const Source source(c.in[1], d.stream);
    const std::uint32_t bound = dropout_bound(d.p);
    const auto scale = static_cast<C>(1 / (1 - d.p));
    const i64 packs = x.layout.is_contiguous() && aligned(x) && aligned(y) ? numel / V : 0,
              rest = numel - packs * V;
    if (packs > 0)
      launch_early(s, {grid_for(s, packs), threads_per_block}, drop_dense<S, V>,
                   reinterpret_cast<Words<S, V>*>(y.data), reinterpret_cast<const Words<S, V>*>(x.data),
                   packs, source, bound, scale);
    if (rest > 0)
      launch_early(s, {grid_for(s, (rest + 3) / 4), threads_per_block}, drop<S>, reinterpret_cast<S*>(y.data),
                   reinterpret_cast<const S*>(x.data), packs * V, numel, region_of(x.layout), source, bound,
                   scale);
  });
}

// Calls f(words, values), the function of an op. It uses `each` words of a block for each value.
template <class S, int each, class F>
__global__ void __launch_bounds__(threads_per_block)
    make(S* out, i64 numel, Source source, const __grid_constant__ F f) {
  begin_early();
  constexpr int V = 4 / each;
  const std::uint64_t key = source.key();
  for (i64 i = thread_number<i64>(); i * V < numel; i += all_threads()) {
    Unit<S, V> value;
    f(words_of(static_cast<std::uint64_t>(i), key), value.at);
    if (numel - i * V >= V) {
      reinterpret_cast<Unit<S, V>*>(out)[i] = value;
    } else {
      for (int e = 0; e < V; ++e)
        if (e < numel - i * V) out[i * V + e] = value.at[e];
    }
  }
}

template <class S, int each, class F>
void fill(const Stream& s, const Call& c, const F& f) {
  const Arg& out = c.out[0];  // row-major, starting at an aligned address
  const i64 numel = out.layout.numel();
  if (numel == 0) return;
  launch_early(s, {grid_for(s, (numel * each + 3) / 4), threads_per_block}, make<S, each, F>,
               reinterpret_cast<S*>(out.data), numel, Source(c.in[0], c.attrs->as<RandomAttrs>().stream), f);
}

// u with 53 bits for f64 and with 24 for other dtypes.
template <class S>
struct Uniform {
  UniformRange range;
  __device__ void operator()(const PhiloxBlock& words, S* x) const {
    if constexpr (sizeof(S) == 8) {
      for (int i = 0; i < 2; ++i) x[i] = range.at(uniform(words[2 * i], words[2 * i + 1]));
    } else {
      for (int i = 0; i < 4; ++i) x[i] = narrow<S>(range.at(static_cast<double>(uniform(words[i]))));
    }
  }
};

// mean + std·n in f64. The Box-Muller method computes the normal numbers n in pairs.
template <class S>
struct Normal {
  double mean, std;
  __device__ void operator()(const PhiloxBlock& words, S* x) const {
    for (int i = 0; i < 4; i += 2) {
      double a = 0, b = 0;
      normal_pair(words[i], words[i + 1], a, b);
      x[i] = narrow<S>(mean + std * a);
      x[i + 1] = narrow<S>(mean + std * b);
    }
  }
};

struct Bernoulli {
  std::uint64_t bound;
  __device__ void operator()(const PhiloxBlock& words, bool* x) const {
    for (int i = 0; i < 4; ++i) x[i] = words[i] < bound;
  }
};

// low + ⌊u·range⌋ with 64 bits of u
template <class S>
struct Randint {
  i64 low;
  std::uint64_t range;
  __device__ void operator()(const PhiloxBlock& words, S* x) const {
    for (int i = 0; i < 2; ++i) {
      const std::uint64_t u = std::uint64_t{words[2 * i]} << 32 | words[2 * i + 1];
      x[i] = narrow<S>(low + static_cast<i64>(__umul64hi(u, range)));
    }
  }
};

void launch_uniform(const Stream& s, const Call& c) {
  const auto& r = c.attrs->as<RandomAttrs>();
  with_float(c.out[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    fill<S, sizeof(S) == 8 ? 2 : 1>(s, c, Uniform<S>{uniform_range(c.out[0].dtype, r.a, r.b)});
  });
}
void launch_normal(const Stream& s, const Call& c) {
  const auto& r = c.attrs->as<RandomAttrs>();
  with_float(c.out[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    fill<S, 1>(s, c, Normal<S>{r.a, r.b});
  });
}
void launch_bernoulli(const Stream& s, const Call& c) {
  fill<bool, 1>(s, c, Bernoulli{bernoulli_bound(c.attrs->as<RandomAttrs>().a)});
}
void launch_randint(const Stream& s, const Call& c) {
  const auto& r = c.attrs->as<RandomAttrs>();
  const auto low = static_cast<i64>(r.a);
  const auto range = static_cast<std::uint64_t>(static_cast<i64>(r.b) - low);
  with_any(c.out[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    if constexpr (std::is_integral_v<S> && !std::is_same_v<S, bool>) fill<S, 2>(s, c, Randint<S>{low, range});
  });
}

// keep[b, h, i, j] is true if word j % 4 of block (b·H + h, i, j / 4) is at or above the bound. Each thread
// computes one block of words.
__global__ void __launch_bounds__(threads_per_block)
    keep_mask(bool* keep, i64 rows, i64 queries, i64 keys, Source source, std::uint32_t bound) {
  begin_early();
  const std::uint64_t key = source.key();
  const i64 in_row = (keys + 3) / 4;
  for (i64 i = thread_number<i64>(); i < rows * in_row; i += all_threads()) {
    const i64 row = i / in_row, j = i % in_row * 4;
    const PhiloxBlock words =
        philox(attention_counter(static_cast<std::uint32_t>(row / queries),
                                 static_cast<std::uint32_t>(row % queries), static_cast<std::uint32_t>(j)),
               key);
    for (int e = 0; e < 4; ++e)
      if (j + e < keys) keep[row * keys + j + e] = words[e] >= bound;
  }
}

void launch_mask(const Stream& s, const Call& c) {
  const auto& a = c.attrs->as<KeepMaskAttrs>();
  const i64 rows = a.shape[0] * a.shape[1] * a.shape[2], keys = a.shape[3];
  if (rows * keys == 0) return;
  launch_early(s, {grid_for(s, rows * ((keys + 3) / 4)), threads_per_block}, keep_mask,
               reinterpret_cast<bool*>(c.out[0].data), rows, a.shape[2], keys,
               Source(c.in[0], static_cast<std::uint64_t>(a.stream)), dropout_bound(a.dropout));
}

}  // namespace

extern const Kernel dropout_kernel{&launch_dropout};
extern const Kernel uniform_kernel{&launch_uniform};
extern const Kernel normal_kernel{&launch_normal};
extern const Kernel bernoulli_kernel{&launch_bernoulli};
extern const Kernel randint_kernel{&launch_randint};
extern const Kernel attention_keep_mask_kernel{&launch_mask};

}  // namespace tg::cuda
