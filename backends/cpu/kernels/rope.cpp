// RoPE. The kernel first computes a table of cosines and sines, with one row per distinct position. It then
// uses the table to rotate all rows of x.
#include "ops/rope.h"

#include <cmath>

#include "backends/cpu/kernels/rows.h"

namespace tg::cpu::TG_ISA {

namespace {

// The axes of `positions` along which the rows of the table differ. `in` is the stride in `positions`, `out`
// the stride in rows of the table.
struct Table {
  AxisList axes;
  AxisList rows;  // the axes of x except the last; `out` is the row of the table
  i64 count = 1;

  explicit Table(const Call& call) {
    const Layout& x = call.in[0].layout;
    const bool given = call.in.size() > 1;
    i64 out[max_rank];
    for (int i = x.rank() - 2; i >= 0; --i) {
      const i64 stride = given ? call.in[1].layout.strides[i] : i == x.rank() - 2;
      const bool differs = stride != 0 && x.shape[i] > 1;
      out[i] = differs ? count : 0;
      if (differs) count *= x.shape[i];
    }
    for (int i = 0; i + 1 < x.rank(); ++i) {
      rows.push({x.shape[i], 0, out[i]});
      if (out[i] != 0) axes.push({x.shape[i], given ? call.in[1].layout.strides[i] : 1, out[i]});
    }
  }
};

// Computes cos and sin of n angles, which are given modulo 2π.
template <class C>
void cos_and_sin(const double* angle, C* c, C* s, i64 n) {
  if constexpr (sizeof(C) == 8) {
    for (i64 i = 0; i < n; ++i) c[i] = ::cos(angle[i]), s[i] = ::sin(angle[i]);
  } else {
    C reduced[lanes<F32>] = {};
    for (i64 i = 0; i < n; i += lanes<F32>) {
      const int k = n - i < lanes<F32> ? static_cast<int>(n - i) : lanes<F32>;
      for (int j = 0; j < k; ++j) reduced[j] = static_cast<C>(angle[i + j]);
      store_n(c + i, cos(load(reduced)), k);
      store_n(s + i, sin(load(reduced)), k);
    }
  }
}

// Swaps the elements of each pair.
template <class V, int... i>
TG_INLINE V swapped(V v, std::integer_sequence<int, i...>) {
  return __builtin_shufflevector(v, v, (i ^ 1)...);
}

// y is row x, rotated by the factors c and s [pairs]. For interleaved pairs, the factors are [2·pairs]: each
// cosine is stored twice, and each sine as -sin, sin.
template <class C>
void rotate(const C* x, C* y, const C* c, const C* s, i64 pairs, i64 d, bool interleaved) {
  using V = vector_t<C>;
  if (interleaved) {
    for_vectors<C>(2 * pairs, [&](i64 i, int k) {
      const V v = load_n(x + i, k), other = swapped(v, std::make_integer_sequence<int, lanes<V>>());
      store_n(y + i, v * load_n(c + i, k) + other * load_n(s + i, k), k);
    });
  } else {
    for_vectors<C>(pairs, [&](i64 i, int k) {
      const V a = load_n(x + i, k), b = load_n(x + pairs + i, k), ci = load_n(c + i, k),
              si = load_n(s + i, k);
      store_n(y + i, a * ci - b * si, k);
      store_n(y + pairs + i, a * si + b * ci, k);
    });
  }
  for_vectors<C>(d - 2 * pairs,
                 [&](i64 i, int k) { store_n(y + 2 * pairs + i, load_n(x + 2 * pairs + i, k), k); });
}

template <class C>
void run_as(Worker& w, const Call& call) {
  if (call.out[0].layout.numel() == 0) return;  // the positions may be empty
  const auto& a = call.attrs->as<RopeAttrs>();
  const int last = call.in[0].layout.rank() - 1;
  const AxisRows<C> x(call.in[0], last), y(call.out[0], last, call.in[0].data);
  const Table table(call);
  const auto pairs = static_cast<i64>(a.frequencies.size());
  const double* frequency = a.frequencies.data();
  const bool given = call.in.size() > 1;
  C* factors = reinterpret_cast<C*>(w.shared);  // [count, 2, 2·pairs]: cosines, sines
  C* buffer = reinterpret_cast<C*>(w.scratch);  // [2, d]
  auto* angles = reinterpret_cast<double*>(buffer + (2 * x.n + 1) / 2 * 2);  // [pairs], then two of C
  C *cosines = reinterpret_cast<C*>(angles + pairs), *sines = cosines + pairs;
  constexpr i64 some = 16;
  w.each((table.count + some - 1) / some, [&](i64 part) {
    const i64 end = (part + 1) * some < table.count ? (part + 1) * some : table.count;
    Counter at(table.axes, part * some);
    for (i64 t = part * some; t < end; ++t, at.next()) {
      i64 position = a.start + t;
      if (given)
        block_load(call.in[1].dtype, DType::i64)(
            &position, call.in[1].data + at.in * static_cast<i64>(size_of(call.in[1].dtype)), 0, 1);
      for (i64 i = 0; i < pairs; ++i) {  // angles are f64: a large position times ω needs the digits
        const double angle = static_cast<double>(position) * frequency[i] * (a.inverse ? -1 : 1);
        angles[i] = sizeof(C) == 8 ? angle
                                   : angle - 6.28318530717958647693 *
                                                 __builtin_nearbyint(angle * 0.15915494309189533577);
      }
      C *c = factors + t * 4 * pairs, *s = c + 2 * pairs;
      if (!a.interleaved) {
        cos_and_sin(angles, c, s, pairs);
        continue;
      }
      cos_and_sin(angles, cosines, sines, pairs);
      for (i64 i = 0; i < pairs; ++i) {
        c[2 * i] = c[2 * i + 1] = cosines[i];
        s[2 * i] = -sines[i], s[2 * i + 1] = sines[i];
      }
    }
  });
  if (!w.barrier()) return;
  each_rows(w, x.count, x.n, [&](i64 begin, i64 end) {
    Counter row(table.rows, begin);
    for (i64 r = begin; r < end; ++r, row.next()) {
      const C *in = x.read(r, buffer), *c = factors + row.out * 4 * pairs;
      C* out = y.target(r, buffer + x.n);
      rotate(in, out, c, c + 2 * pairs, pairs, x.n, a.interleaved);
      y.finish(r, out);
    }
  });
  y.end();
}

Scratch scratch(const Call& call, int) {
  const std::size_t size = size_of(compute_type(call.in[0].dtype));
  const std::size_t pairs = call.attrs->as<RopeAttrs>().frequencies.size();
  const auto d = static_cast<std::size_t>(call.in[0].layout.shape.back());
  return {(2 * d + 2) * size + pairs * (sizeof(double) + 2 * size),
          static_cast<std::size_t>(Table(call).count) * 4 * pairs * size};
}

}  // namespace

extern const Kernel rope_kernel{&run_float<run_as<double>, run_as<float>>, &scratch};

}  // namespace tg::cpu::TG_ISA
