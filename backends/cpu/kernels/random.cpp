// Random ops, element by element from Philox words, in the order that core/base/rng.h and core/base/random.h
// define. Compiled without FMA contraction, so that results are bitwise identical for every instruction set.
#include "ops/random.h"

#include <tilegrad/core/base/random.h>
#include "backends/cpu/kernels/philox.h"
#include "backends/cpu/kernels/rows.h"

namespace tg::cpu::TG_ISA {

namespace {

constexpr i64 block = Flat<float>::block;
using Word = std::uint32_t;

std::uint64_t key_of(const Arg& rng, std::uint64_t stream) {
  const auto* state = reinterpret_cast<const i64*>(rng.data);
  return node_key(static_cast<std::uint64_t>(state[0]),
                  static_cast<std::uint64_t>(state[rng.layout.strides[0]]),
                  static_cast<std::uint32_t>(stream));
}

// Computes the words of elements start … start + n - 1. There are `each` words per element, 1 or 2. `start`
// is a multiple of 4. The function may write up to one vector of words too many.
TG_INLINE void draw(i64 start, i64 n, int each, std::uint64_t key, Word* to) {
  const i64 first = start * each / 4, blocks = (n * each + 3) / 4;
  for (i64 b = 0; b < blocks; b += lanes<U32>)
    element_words(static_cast<std::uint64_t>(first + b), key, to + b * 4);
}
constexpr std::size_t words_bytes = (2 * block + 4 * 16) * sizeof(Word);  // two words per element of a block

template <class C>
void dropout_as(Worker& w, const Call& call) {
  const auto& d = call.attrs->as<DropoutAttrs>();
  const std::uint64_t key = key_of(call.in[1], d.stream);
  const Word bound = dropout_bound(d.p);
  const C scale = static_cast<C>(1 / (1 - d.p));
  const Flat<C> x(call.in[0]), y(call.out[0]);
  auto* words = reinterpret_cast<Word*>(w.scratch);
  C* buffer = reinterpret_cast<C*>(w.scratch + words_bytes);  // [2, block]
  each_block(w, x.count, [&](i64 start, i64 n) {
    draw(start, n, 1, key, words);
    const C* in = x.read(start, n, buffer);
    C* out = y.target(start, buffer + block);
    for (i64 i = 0; i < n; ++i) out[i] = words[i] >= bound ? in[i] * scale : C{0};
    y.finish(start, n, out);
  });
}

// make() is the formula of an op. It computes n values from their words, in f64, or in i64 for integers. The
// values are then rounded to the dtype.
template <class C, class F>
TG_INLINE void fill(Worker& w, const Call& call, int each, F make) {
  const auto& r = call.attrs->as<RandomAttrs>();
  const std::uint64_t key = key_of(call.in[0], r.stream);
  const Arg& out = call.out[0];  // row-major
  const i64 size = static_cast<i64>(size_of(out.dtype));
  const StoreFn to_memory = block_store(dtype_of<C>, out.dtype);
  auto* words = reinterpret_cast<Word*>(w.scratch);
  C* values = reinterpret_cast<C*>(w.scratch + words_bytes);
  each_block(w, out.layout.numel(), [&](i64 start, i64 n) {
    draw(start, n, each, key, words);
    make(values, words, n);
    to_memory(out.data + start * size, values, 1, n);
  });
}

// f32 results are rounded to nearest. Results of 16-bit types are first rounded to odd, and then to nearest
// when they are stored. The dtype can represent the limits, so values may be rounded before they are clamped.
// For the same reason, range.unit is 1.
template <bool odd>
void uniform_narrow(Worker& w, const Call& call, const UniformRange& range) {
  const F32 first = splat<F32>(range.first), last = splat<F32>(range.last);
  fill<float>(w, call, 1, [=](float* x, const Word* words, i64 n) {
    for (i64 i = 0; i < n; i += lanes<F32>) {  // words and x have room for whole vectors
      const U32 word = (U32)load(reinterpret_cast<const std::int32_t*>(words + i));
      const F32 u = to_float((I32)(word >> 8)) * 0x1p-24f;
      const F64 low = range.low + range.width * low_half(u), high = range.low + range.width * high_half(u);
      const F32 v = odd ? odd_floats(low, high) : join(nearest_float(low), nearest_float(high));
      store(x + i, min(last, max(first, v)));
    }
  });
}
void uniform_f64(Worker& w, const Call& call, const UniformRange& range) {
  fill<double>(w, call, 2, [=](double* x, const Word* words, i64 n) {
    for (i64 i = 0; i < n; ++i) x[i] = range.at(uniform(words[2 * i], words[2 * i + 1]));
  });
}

template <class C>
void normal_as(Worker& w, const Call& call) {
  const auto& r = call.attrs->as<RandomAttrs>();
  const double mean = r.a, std = r.b;
  fill<C>(w, call, 1, [=](C* x, const Word* words, i64 n) {
    for (i64 i = 0; i < n; i += 2) {  // if n is odd, writes one more element to the buffer
      double a, b;
      normal_pair(words[i], words[i + 1], a, b);
      x[i] = static_cast<C>(mean + std * a);
      x[i + 1] = static_cast<C>(mean + std * b);
    }
  });
}

void run_uniform(Worker& w, const Call& call) {
  const auto& r = call.attrs->as<RandomAttrs>();
  const UniformRange range = uniform_range(call.out[0].dtype, r.a, r.b);
  if (call.out[0].dtype == DType::f64) return uniform_f64(w, call, range);
  call.out[0].dtype == DType::f32 ? uniform_narrow<false>(w, call, range)
                                  : uniform_narrow<true>(w, call, range);
}
void run_normal(Worker& w, const Call& call) {
  call.out[0].dtype == DType::f32 ? normal_as<float>(w, call) : normal_as<double>(w, call);
}
void run_bernoulli(Worker& w, const Call& call) {
  const std::uint64_t bound = bernoulli_bound(call.attrs->as<RandomAttrs>().a);
  fill<i64>(w, call, 1, [=](i64* x, const Word* words, i64 n) {
    for (i64 i = 0; i < n; ++i) x[i] = words[i] < bound;
  });
}
// low + ⌊u·(high - low)⌋ with 64 bits of u
void run_randint(Worker& w, const Call& call) {
  const auto& r = call.attrs->as<RandomAttrs>();
  const auto low = static_cast<i64>(r.a);
  const auto range = static_cast<std::uint64_t>(static_cast<i64>(r.b) - low);
  fill<i64>(w, call, 2, [=](i64* x, const Word* words, i64 n) {
    for (i64 i = 0; i < n; ++i) {
      const std::uint64_t u = std::uint64_t{words[2 * i]} << 32 | words[2 * i + 1];
      x[i] = low + static_cast<i64>(static_cast<unsigned __int128>(u) * range >> 64);
    }
  });
}

Scratch scratch(const Call&, int) {
  return {words_bytes + (2 * block + 2) * sizeof(double), 0};
}

}  // namespace

extern const Kernel dropout_kernel{&run_float<dropout_as<double>, dropout_as<float>>, &scratch};
extern const Kernel uniform_kernel{&run_uniform, &scratch};
extern const Kernel normal_kernel{&run_normal, &scratch};
extern const Kernel bernoulli_kernel{&run_bernoulli, &scratch};
extern const Kernel randint_kernel{&run_randint, &scratch};

}  // namespace tg::cpu::TG_ISA
