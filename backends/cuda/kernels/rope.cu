// rope: first a table of cosines and sines, a row for each distinct position, then all rows of x turned by
// it.
#include "backends/cuda/kernels/region.cuh"
#include "ops/rope.h"

namespace tg::cuda {

namespace {

constexpr int frequencies_at_once = 256;
struct Frequencies {
  double at[frequencies_at_once];
};

// The rows of the table: the axes of positions along which they differ.
struct Rows {
  Region<1> positions;  // where the position of a row of the table is
  i64 step[max_rank];   // for each axis of x but the last: rows of the table from one place to the next

  explicit Rows(const Call& c) {
    const Layout& x = c.in[0].layout;
    const bool given = c.in.size() > 1;
    const int rows = x.rank() - 1;
    const auto stride = [&](int a) -> i64 { return given ? c.in[1].layout.strides[a] : a == rows - 1; };
    i64 count = 1;
    for (int a = rows - 1; a >= 0; --a) {
      step[a] = stride(a) != 0 && x.shape[a] > 1 ? count : 0;
      if (step[a] != 0) count *= x.shape[a];
    }
    for (int a = 0; a < rows; ++a)
      if (step[a] != 0) positions.axis(x.shape[a], {stride(a)});
  }
};

// table [rows, 2, pairs]: cos and sin of position·ω_i for pairs first … first + n - 1. The angle is in f64:
// a large position times ω has no digits to lose. Positions count from `start` where none are given.
template <class C>
__global__ void __launch_bounds__(threads_per_block)
    make_table(C* table, const __grid_constant__ Region<1> rows, Indices positions, i64 start, int first,
               int n, int pairs, bool inverse, const __grid_constant__ Frequencies frequencies) {
  const i64 i = thread_number<i64>();
  if (i >= rows.numel * n) return;
  const i64 row = i / n;
  const int k = static_cast<int>(i - row * n);
  const i64 position =
      positions.data ? positions[offset_in(rows, static_cast<unsigned long long>(row))] : start + row;
  const double angle = static_cast<double>(position) * frequencies.at[k] * (inverse ? -1 : 1);
  double s, c;
  sincos(angle, &s, &c);
  table[row * 2 * pairs + first + k] = static_cast<C>(c);
  table[row * 2 * pairs + pairs + first + k] = static_cast<C>(s);
}

struct Turning {
  Region<3> rows;        // of x, out, and the table
  i64 x_step, out_step;  // along a row
  int pairs, rest;       // of a row: pairs that turn, elements behind them
  bool interleaved;
};

// (a, b) → (a·c - b·s, a·s + b·c), V pairs to a thread, or V elements of what does not turn. V > 1: a row
// lies in memory element after element, from an aligned address on.
template <class S, int V, class I>
__global__ void __launch_bounds__(threads_per_block)
    turn(S* out, const S* x, const compute_t<S>* table, const __grid_constant__ Turning m) {
  using C = compute_t<S>;
  using U = Unit<S, V>;
  const unsigned turned = static_cast<unsigned>(m.pairs) / V,
                 units = turned + static_cast<unsigned>(m.rest) / V;
  const I n = thread_number<I>();
  if (n >= static_cast<I>(m.rows.numel) * units) return;
  const I row = n / units;
  const int u = static_cast<int>(n - row * units) * V;
  i64 at[3];
  m.rows.offsets(row, at);
  const auto source = [&](int e) { return reinterpret_cast<const U*>(x + at[0] + e * m.x_step); };
  const auto target = [&](int e) { return reinterpret_cast<U*>(out + at[1] + e * m.out_step); };
  if (u >= m.pairs) {
    *target(m.pairs + u) = *source(m.pairs + u);
    return;
  }
  const auto* factors = reinterpret_cast<const Unit<C, V>*>(table + at[2] * 2 * m.pairs + u);
  const Unit<C, V> c = factors[0], s = factors[m.pairs / V];
  const int first = m.interleaved ? 2 * u : u, second = m.interleaved ? 2 * u + V : u + m.pairs;
  U a = *source(first), b = *source(second);
  if (m.interleaved && V > 1) {  // memory has a0 b0 a1 b1 …
    const U low = a, high = b;
    for (int e = 0; e < V; ++e) {
      a.at[e] = 2 * e < V ? low.at[2 * e % V] : high.at[2 * e % V];
      b.at[e] = 2 * e < V ? low.at[(2 * e + 1) % V] : high.at[(2 * e + 1) % V];
    }
  }
  U turned_a, turned_b;
  for (int e = 0; e < V; ++e) {
    const C p = widen(a.at[e]), q = widen(b.at[e]);
    turned_a.at[e] = narrow<S>(p * c.at[e] - q * s.at[e]);
    turned_b.at[e] = narrow<S>(p * s.at[e] + q * c.at[e]);
  }
  if (m.interleaved && V > 1) {
    U low, high;
    for (int e = 0; e < V; ++e) {
      U& to = 2 * e < V ? low : high;
      to.at[2 * e % V] = turned_a.at[e];
      to.at[(2 * e + 1) % V] = turned_b.at[e];
    }
    turned_a = low, turned_b = high;
  }
  *target(first) = turned_a;
  *target(second) = turned_b;
}

template <class S>
void launch_as(const Stream& s, const Call& c) {
  using C = compute_t<S>;
  const auto& a = c.attrs->as<RopeAttrs>();
  const Arg &x = c.in[0], &out = c.out[0];
  const int last = x.layout.rank() - 1, pairs = static_cast<int>(a.frequencies.size());
  const Rows rows(c);
  C* table = reinterpret_cast<C*>(s.workspace);
  for (int first = 0; first < pairs; first += frequencies_at_once) {
    const int n = pairs - first < frequencies_at_once ? pairs - first : frequencies_at_once;
    Frequencies f{};
    for (int i = 0; i < n; ++i) f.at[i] = a.frequencies[static_cast<std::size_t>(first + i)];
    launch_kernel(s, {blocks_for(rows.positions.numel * n, threads_per_block), threads_per_block},
                  make_table<C>, table, rows.positions, Indices(c.in.size() > 1 ? c.in[1] : Arg{}), a.start,
                  first, n, pairs, a.inverse, f);
  }
  Turning m{{},
            x.layout.strides[last],
            out.layout.strides[last],
            pairs,
            static_cast<int>(x.layout.shape[last]) - 2 * pairs,
            a.interleaved};
  constexpr int V = 16 / sizeof(S);
  bool whole = m.x_step == 1 && m.out_step == 1 && pairs % V == 0 && m.rest % V == 0;
  for (const Arg* o : {&x, &out}) {
    whole = whole && reinterpret_cast<std::uintptr_t>(o->data) % 16 == 0;
    for (int k = 0; k < last; ++k) whole = whole && (o->layout.strides[k] % V == 0 || x.layout.shape[k] == 1);
  }
  for (int k = 0; k < last; ++k)
    m.rows.axis(x.layout.shape[k], {x.layout.strides[k], out.layout.strides[k], rows.step[k]});
  const i64 threads = m.rows.numel * (pairs + m.rest) / (whole ? V : 1);
  with_count(threads, [&](auto* counter) {
    using I = pointee_t<decltype(counter)>;
    const auto run = [&](auto* kernel) {
      launch_kernel(s, {blocks_for(threads, threads_per_block), threads_per_block}, kernel,
                    reinterpret_cast<S*>(out.data), reinterpret_cast<const S*>(x.data), table, m);
    };
    whole ? run(&turn<S, V, I>) : run(&turn<S, 1, I>);
  });
}

void launch(const Stream& s, const Call& c) {
  if (c.out[0].layout.numel() == 0) return;
  with_float(c.out[0].dtype, [&](auto* type) { launch_as<pointee_t<decltype(type)>>(s, c); });
}

std::size_t workspace(const Call& c) {
  const std::size_t pairs = c.attrs->as<RopeAttrs>().frequencies.size();
  return static_cast<std::size_t>(Rows(c).positions.numel) * 2 * pairs * size_of(compute_type(c.in[0].dtype));
}

}  // namespace

const Kernel rope_kernel{&launch, &workspace};

}  // namespace tg::cuda
