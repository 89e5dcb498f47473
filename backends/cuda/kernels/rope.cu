// rope: first a table of cosines and sines, a row for each distinct position, then all rows of x rotated by
// it.
#include "backends/cuda/kernels/any.cuh"
#include "backends/cuda/kernels/region.cuh"
#include "ops/rope.h"

namespace tg::cuda {

namespace {

constexpr int frequencies_at_once = 256;
struct Frequencies {
  double at[frequencies_at_once];
};

// The rows of the table: the axes of positions along which they differ.
struct TableRows {
  Region<1> positions;  // where the position of a row of the table is
  i64 step[max_rank];   // for each axis of x except the last: rows of the table from one index to the next

  explicit TableRows(const Call& c) {
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

// table [rows, 2, pairs]: cos and sin of position·ω_i for pairs first … first + n - 1. The angle is in f64,
// because a large position times ω has no digits to lose. Without positions, they count from `start`.
template <class C, class I>
__global__ void __launch_bounds__(threads_per_block)
    make_table(C* table, const __grid_constant__ Region<1> rows, Indices positions, i64 start, int first,
               int n, int pairs, bool inverse, const __grid_constant__ Frequencies frequencies) {
  begin_early();
  const I i = thread_number<I>();
  if (i >= static_cast<I>(rows.numel) * static_cast<I>(n)) return;
  const I in_table = i / static_cast<I>(n);
  const i64 row = static_cast<i64>(in_table);
  const int k = static_cast<int>(i - in_table * static_cast<I>(n));
  const i64 position = positions.data ? positions[offset_in(rows, in_table)] : start + row;
  const double angle = static_cast<double>(position) * frequencies.at[k] * (inverse ? -1 : 1);
  double s, c;
  sincos(angle, &s, &c);
  table[row * 2 * pairs + first + k] = static_cast<C>(c);
  table[row * 2 * pairs + pairs + first + k] = static_cast<C>(s);
}

// Rows of x that share a row of the table are rotated by the same threads, this many at once.
constexpr int rows_at_once = 4;

struct Rotation {
  Region<3> rows;  // of x, out, and the table, without the axis along which rows of x share one of the table
  i64 x_step, out_step;           // along a row
  i64 sharing, x_next, out_next;  // the length of that axis, and the strides along it
  int pairs, rest;                // of a row: pairs that are rotated, elements after them
  bool interleaved;
};

// V elements as they are read.
template <class S, int V>
using Piece = std::conditional_t<V == 1, Unit<S, 1>, Words<S, V>>;
template <class S>
__device__ __forceinline__ void unpack(const Unit<S, 1>& piece, compute_t<S> (&to)[1]) {
  to[0] = widen(piece.at[0]);
}
// 16 bytes are written by one instruction: the compiler writes half of these structs word by word, and the
// second-level cache then has four times as much to do.
template <class S, int V>
__device__ __forceinline__ void put(S* to, const compute_t<S> (&from)[V]) {
  if constexpr (V == 1) {
    *to = narrow<S>(from[0]);
  } else {
    const Words<S, V> w = packed<S>(from);
    static_assert(sizeof w == 16);
    float words[4];
    memcpy(words, &w, sizeof w);
    ptx::st_global_v4(reinterpret_cast<float*>(to), words);
  }
}

template <class C>
__device__ __forceinline__ void turn(C& a, C& b, C c, C s) {
  const C p = a, q = b;
  a = p * c - q * s;
  b = p * s + q * c;
}

// (a, b) → (a·c - b·s, a·s + b·c): a thread has two times V elements of some rows, one half of what is
// rotated apart, or V elements that are not rotated. V > 1 requires contiguous rows that begin at an aligned
// address.
template <class S, int V, class I>
__global__ void __launch_bounds__(threads_per_block)
    rotate(S* out, const S* x, const compute_t<S>* table, const __grid_constant__ Rotation m) {
  begin_early();
  using C = compute_t<S>;
  const unsigned rotated = static_cast<unsigned>(m.pairs) / V,
                 units = rotated + static_cast<unsigned>(m.rest) / V,
                 groups = static_cast<unsigned>((m.sharing + rows_at_once - 1) / rows_at_once);
  const I n = thread_number<I>();
  if (n >= static_cast<I>(m.rows.numel) * groups * units) return;
  const I group = n / units, row = group / groups;
  const int u = static_cast<int>(n - group * units) * V;
  const i64 shared = static_cast<i64>(group - row * groups) * rows_at_once;
  i64 at[3];
  m.rows.offsets(row, at);
  const S* const source = x + at[0] + shared * m.x_next;
  S* const target = out + at[1] + shared * m.out_next;
  const auto here = [&](int h) { return shared + h < m.sharing; };
  // Row h's elements from e on; the first row's if there is no row h.
  const auto load = [&](int h, i64 e) {
    return *reinterpret_cast<const Piece<S, V>*>(source + (here(h) ? h * m.x_next : 0) + e * m.x_step);
  };
  const auto store = [&](int h, i64 e, const C(&from)[V]) {
    put(target + h * m.out_next + e * m.out_step, from);
  };
  Piece<S, V> piece[2][rows_at_once];
  C a[V], b[V];
  if (u >= m.pairs) {
    const i64 e = m.pairs + u;
#pragma unroll
    for (int h = 0; h < rows_at_once; ++h) piece[0][h] = load(h, e);
#pragma unroll
    for (int h = 0; h < rows_at_once; ++h) {
      if (!here(h)) break;
      unpack(piece[0][h], a);
      store(h, e, a);
    }
    return;
  }
  const bool one_by_one = V == 1 && m.interleaved;
  const i64 first = one_by_one ? 2 * u : u, second = one_by_one ? 2 * u + 1 : u + m.pairs;
#pragma unroll
  for (int h = 0; h < rows_at_once; ++h) piece[0][h] = load(h, first), piece[1][h] = load(h, second);
  const C* const factors = table + at[2] * 2 * m.pairs;
  const auto turn_rows = [&](auto&& turn_pieces) {
#pragma unroll
    for (int h = 0; h < rows_at_once; ++h) {
      if (!here(h)) break;
      unpack(piece[0][h], a), unpack(piece[1][h], b);
      turn_pieces();
      store(h, first, a);
      store(h, second, b);
    }
  };
  if constexpr (V > 1)
    if (m.interleaved) {
      using Half = Unit<C, V / 2>;  // each piece has so many pairs of its own
      const auto half = [&](i64 pair) { return *reinterpret_cast<const Half*>(factors + pair); };
      const Half c[2] = {half(first / 2), half(second / 2)},
                 s[2] = {half(m.pairs + first / 2), half(m.pairs + second / 2)};
      turn_rows([&] {
#pragma unroll
        for (int e = 0; e < V / 2; ++e) {
          turn(a[2 * e], a[2 * e + 1], c[0].at[e], s[0].at[e]);
          turn(b[2 * e], b[2 * e + 1], c[1].at[e], s[1].at[e]);
        }
      });
      return;
    }
  const auto* pair = reinterpret_cast<const Unit<C, V>*>(factors + u);
  const Unit<C, V> c = pair[0], s = pair[m.pairs / V];
  turn_rows([&] {
#pragma unroll
    for (int e = 0; e < V; ++e) turn(a[e], b[e], c.at[e], s.at[e]);
  });
}

template <class S>
void launch_as(const Stream& s, const Call& c) {
  using C = compute_t<S>;
  const auto& a = c.attrs->as<RopeAttrs>();
  const Arg &x = c.in[0], &out = c.out[0];
  const int last = x.layout.rank() - 1, pairs = static_cast<int>(a.frequencies.size());
  const TableRows rows(c);
  C* table = reinterpret_cast<C*>(s.workspace);
  for (int first = 0; first < pairs; first += frequencies_at_once) {
    const int n = pairs - first < frequencies_at_once ? pairs - first : frequencies_at_once;
    Frequencies f{};
    for (int i = 0; i < n; ++i) f.at[i] = a.frequencies[static_cast<std::size_t>(first + i)];
    with_count(rows.positions.numel * n, [&](auto* counter) {
      launch_early(s, {blocks_for(rows.positions.numel * n, threads_per_block), threads_per_block},
                   make_table<C, pointee_t<decltype(counter)>>, table, rows.positions,
                   Indices(c.in.size() > 1 ? c.in[1] : Arg{}), a.start, first, n, pairs, a.inverse, f);
    });
  }
  Rotation m{{},
             x.layout.strides[last],
             out.layout.strides[last],
             1,
             0,
             0,
             pairs,
             static_cast<int>(x.layout.shape[last]) - 2 * pairs,
             a.interleaved};
  constexpr int V = 16 / sizeof(S);
  bool whole = m.x_step == 1 && m.out_step == 1 && pairs % V == 0 && m.rest % V == 0;
  for (const Arg* o : {&x, &out}) {
    whole = whole && reinterpret_cast<std::uintptr_t>(o->data) % 16 == 0;
    for (int k = 0; k < last; ++k) whole = whole && (o->layout.strides[k] % V == 0 || x.layout.shape[k] == 1);
  }
  int sharing = -1;  // the longest axis along which rows share a row of the table
  for (int k = 0; k < last; ++k)
    if (rows.step[k] == 0 && x.layout.shape[k] > (sharing < 0 ? 1 : x.layout.shape[sharing])) sharing = k;
  if (sharing >= 0)
    m.sharing = x.layout.shape[sharing], m.x_next = x.layout.strides[sharing],
    m.out_next = out.layout.strides[sharing];
  for (int k = 0; k < last; ++k)
    if (k != sharing)
      m.rows.axis(x.layout.shape[k], {x.layout.strides[k], out.layout.strides[k], rows.step[k]});
  const i64 groups = (m.sharing + rows_at_once - 1) / rows_at_once,
            threads = m.rows.numel * groups * (pairs + m.rest) / (whole ? V : 1);
  with_count(threads, [&](auto* counter) {
    using I = pointee_t<decltype(counter)>;
    const auto run = [&](auto* kernel) {
      launch_early(s, {blocks_for(threads, threads_per_block), threads_per_block}, kernel,
                   reinterpret_cast<S*>(out.data), reinterpret_cast<const S*>(x.data), table, m);
    };
    whole ? run(&rotate<S, V, I>) : run(&rotate<S, 1, I>);
  });
}

void launch_rope(const Stream& s, const Call& c) {
  if (c.out[0].layout.numel() == 0) return;
  with_float(c.out[0].dtype, [&](auto* type) { launch_as<pointee_t<decltype(type)>>(s, c); });
}

std::size_t workspace(const Call& c) {
  const std::size_t pairs = c.attrs->as<RopeAttrs>().frequencies.size();
  return static_cast<std::size_t>(TableRows(c).positions.numel) * 2 * pairs *
         size_of(compute_type(c.in[0].dtype));
}

}  // namespace

extern const Kernel rope_kernel{&launch_rope, &workspace};

}  // namespace tg::cuda
