// RoPE: rotates all rows of x by a table of cosines and sines. The table has a row for each distinct
// position. If positions are given, each run computes the table first. If positions are implicit, plans share
// a table that is computed once.
#include "backends/cuda/fusion/rope.h"

#include <map>
#include <mutex>
#include <tuple>

#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/kernels/any.cuh"
#include "backends/cuda/kernels/region.cuh"
#include "backends/cuda/kernels/rotation.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/memory.h"

namespace tg::cuda {

namespace {

constexpr int frequencies_at_once = 256;
struct Frequencies {
  double at[frequencies_at_once];
};

// The rows of the table: the axes along which positions differ.
struct TableRows {
  Region<1> positions;  // the positions of the rows of the table
  i64 step[max_rank];   // stride in rows of the table, for each axis of x except the last

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
// because the product of a large position and ω needs the precision. If no positions are given, they start at
// `start`.
template <class C, class I>
__global__ void __launch_bounds__(threads_per_block)
    make_table(C* table, const __grid_constant__ Region<1> rows, Indices positions, i64 start, int first,
               int n, int pairs, const __grid_constant__ Frequencies frequencies) {
  begin_early();
  const I i = thread_number<I>();
  if (i >= static_cast<I>(rows.numel) * static_cast<I>(n)) return;
  const I in_table = i / static_cast<I>(n);
  const i64 row = static_cast<i64>(in_table);
  const int k = static_cast<int>(i - in_table * static_cast<I>(n));
  const i64 position = positions.data ? positions[offset_in(rows, in_table)] : start + row;
  const double angle = static_cast<double>(position) * frequencies.at[k];
  double s, c;
  sincos(angle, &s, &c);
  table[row * 2 * pairs + first + k] = static_cast<C>(c);
  table[row * 2 * pairs + pairs + first + k] = static_cast<C>(s);
}

// Computes the table on the stream for these frequencies.
template <class C>
void launch_table(const Stream& s, C* table, const Region<1>& rows, const Arg& positions,
                  const RopeAttrs& a) {
  const int pairs = static_cast<int>(a.frequencies.size());
  for (int first = 0; first < pairs; first += frequencies_at_once) {
    const int n = pairs - first < frequencies_at_once ? pairs - first : frequencies_at_once;
    Frequencies f{};
    for (int i = 0; i < n; ++i) f.at[i] = a.frequencies[static_cast<std::size_t>(first + i)];
    with_count(rows.numel * n, [&](auto* counter) {
      launch_threads(s, rows.numel * n, make_table<C, pointee_t<decltype(counter)>>, table, rows,
                     Indices(positions), a.start, first, n, pairs, f);
    });
  }
}

std::size_t bytes_of_table(i64 rows, std::size_t pairs, DType compute) {
  return static_cast<std::size_t>(rows) * 2 * pairs * size_of(compute);
}

// Number of rows of x that a thread rotates at a time. These rows share a row of the table.
constexpr int rows_at_once = 4;

// The rotated part of a row: elements first … first + 2·pairs − 1. The other elements are copied, or not
// accessed if x and out are the same memory.
struct Rotation {
  Region<3> rows;                 // of x, out and the table, without the axis of length `sharing`
  i64 x_step, out_step;           // along a row
  i64 sharing, x_next, out_next;  // axis whose rows share a row of the table: length, strides
  int pairs, first, rest;         // rotated pairs, elements before them, and all copied elements
  int table_pairs;                // pairs of a row of the table; the last ones are rotated
  bool interleaved, inverse;
};
struct Job {
  void* out;
  const void *x, *table;
  Rotation m;
};
// The jobs of a launch. Blocks at `second` and later process the second job.
template <int count>
struct Jobs {
  Job at[count];
  unsigned second;
};

// V elements as they are read.
template <class S, int V>
using Piece = std::conditional_t<V == 1, Unit<S, 1>, Words<S, V>>;
template <class S>
__device__ __forceinline__ void unpack(const Unit<S, 1>& piece, compute_t<S> (&to)[1]) {
  to[0] = widen(piece.at[0]);
}
// Writes 16 bytes by one instruction. The compiler would write half of these structs word by word. This would
// cause four times as many L2 cache accesses.
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

// (a, b) → (a·c - b·s, a·s + b·c). A thread processes some rows. In each row, it rotates two groups of V
// elements, or copies V elements that are not rotated. The distance between the two groups is half of the
// rotated part. V > 1 requires contiguous rows with an aligned address.
template <class S, int V, class I, int count>
__global__ void __launch_bounds__(threads_per_block) rotate(const __grid_constant__ Jobs<count> jobs) {
  begin_early();
  using C = compute_t<S>;
  const bool is_second = count > 1 && blockIdx.x >= jobs.second;
  const Job& job = jobs.at[is_second];
  const Rotation& m = job.m;
  const unsigned rotated = static_cast<unsigned>(m.pairs) / V,
                 units = rotated + static_cast<unsigned>(m.rest) / V,
                 groups = static_cast<unsigned>((m.sharing + rows_at_once - 1) / rows_at_once);
  const I n = thread_number<I>() - (is_second ? jobs.second * static_cast<I>(threads_per_block) : 0);
  if (n >= static_cast<I>(m.rows.numel) * groups * units) return;
  const I group = n / units, row = group / groups;
  const int u = static_cast<int>(n - group * units) * V;
  const i64 shared = static_cast<i64>(group - row * groups) * rows_at_once;
  i64 at[3];
  m.rows.offsets(row, at);
  const S* const source = static_cast<const S*>(job.x) + at[0] + shared * m.x_next;
  S* const target = static_cast<S*>(job.out) + at[1] + shared * m.out_next;
  const auto here = [&](int h) { return shared + h < m.sharing; };
  // Loads elements of row h, starting at element e. If there is no row h, loads the first row instead.
  const auto load = [&](int h, i64 e) {
    return *reinterpret_cast<const Piece<S, V>*>(source + (here(h) ? h * m.x_next : 0) + e * m.x_step);
  };
  const auto store = [&](int h, i64 e, const C(&from)[V]) {
    put(target + h * m.out_next + e * m.out_step, from);
  };
  Piece<S, V> piece[2][rows_at_once];
  C a[V], b[V];
  if (u >= m.pairs) {
    const i64 copied = u - m.pairs, e = copied < m.first ? copied : copied + 2 * m.pairs;
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
  const i64 first = m.first + (one_by_one ? 2 * u : u),
            second = m.first + (one_by_one ? 2 * u + 1 : u + m.pairs);
#pragma unroll
  for (int h = 0; h < rows_at_once; ++h) piece[0][h] = load(h, first), piece[1][h] = load(h, second);
  const C* const factors =
      static_cast<const C*>(job.table) + at[2] * 2 * m.table_pairs + (m.table_pairs - m.pairs);
  const auto sine = [&](C s) { return m.inverse ? -s : s; };
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
      using Half = Unit<C, V / 2>;  // each group has V / 2 pairs
      const auto half = [&](i64 pair) { return *reinterpret_cast<const Half*>(factors + pair); };
      const i64 ahead[2] = {u / 2, (u + m.pairs) / 2};
      const Half c[2] = {half(ahead[0]), half(ahead[1])},
                 s[2] = {half(m.table_pairs + ahead[0]), half(m.table_pairs + ahead[1])};
      turn_rows([&] {
#pragma unroll
        for (int e = 0; e < V / 2; ++e) {
          rotate_pair(a[2 * e], a[2 * e + 1], c[0].at[e], sine(s[0].at[e]));
          rotate_pair(b[2 * e], b[2 * e + 1], c[1].at[e], sine(s[1].at[e]));
        }
      });
      return;
    }
  using Factors = Unit<C, V>;
  const Factors c = *reinterpret_cast<const Factors*>(factors + u),
                s = *reinterpret_cast<const Factors*>(factors + m.table_pairs + u);
  turn_rows([&] {
#pragma unroll
    for (int e = 0; e < V; ++e) rotate_pair(a[e], b[e], c.at[e], sine(s.at[e]));
  });
}

// Number of leading pairs with frequency 0 in interleaved rows, rounded down to whole vectors. Latent
// attention has such pairs.
int still_pairs(const RopeAttrs& a, int vector) {
  std::size_t n = 0;
  while (a.interleaved && n < a.frequencies.size() && a.frequencies[n] == 0) ++n;
  return static_cast<int>(n) / vector * vector;
}

struct RopeWork {
  Job job;
  bool whole;  // all rows consist of aligned pieces of 16 bytes
  i64 threads;
};
template <class S>
RopeWork work_of(const Call& c, const void* table) {
  constexpr int V = 16 / sizeof(S);
  const auto& a = c.attrs->as<RopeAttrs>();
  const Arg &x = c.in[0], &out = c.out[0];
  const int last = x.layout.rank() - 1, all_pairs = static_cast<int>(a.frequencies.size());
  const TableRows rows(c);
  RopeWork w{{out.data, x.data, table, {}}, false, 0};
  Rotation& m = w.job.m;
  m.x_step = x.layout.strides[last], m.out_step = out.layout.strides[last];
  m.table_pairs = all_pairs, m.interleaved = a.interleaved, m.inverse = a.inverse;
  const int still = still_pairs(a, V);
  m.pairs = all_pairs - still, m.first = 2 * still;
  m.rest = static_cast<int>(x.layout.shape[last]) - 2 * m.pairs;
  w.whole = m.x_step == 1 && m.out_step == 1 && m.pairs % V == 0 && m.rest % V == 0;
  for (const Arg* o : {&x, &out}) {
    w.whole = w.whole && reinterpret_cast<std::uintptr_t>(o->data) % 16 == 0;
    for (int k = 0; k < last; ++k)
      w.whole = w.whole && (o->layout.strides[k] % V == 0 || x.layout.shape[k] == 1);
  }
  if (x.data == out.data && x.layout.strides == out.layout.strides) m.rest = 0;
  m.sharing = 1;
  int sharing = -1;  // the longest axis along which rows share a row of the table
  for (int k = 0; k < last; ++k)
    if (rows.step[k] == 0 && x.layout.shape[k] > (sharing < 0 ? 1 : x.layout.shape[sharing])) sharing = k;
  if (sharing >= 0)
    m.sharing = x.layout.shape[sharing], m.x_next = x.layout.strides[sharing],
    m.out_next = out.layout.strides[sharing];
  for (int k = 0; k < last; ++k)
    if (k != sharing)
      m.rows.axis(x.layout.shape[k], {x.layout.strides[k], out.layout.strides[k], rows.step[k]});
  const i64 groups = (m.sharing + rows_at_once - 1) / rows_at_once;
  w.threads = m.rows.numel * groups * (m.pairs + m.rest) / (w.whole ? V : 1);
  return w;
}

template <class S>
void launch_as(const Stream& s, const Call& c, const void* table) {
  if (!table) {
    table = s.workspace;
    launch_table(s, reinterpret_cast<compute_t<S>*>(s.workspace), TableRows(c).positions,
                 c.in.size() > 1 ? c.in[1] : Arg{}, c.attrs->as<RopeAttrs>());
  }
  const RopeWork w = work_of<S>(c, table);
  if (w.threads == 0) return;
  with_count(w.threads, [&](auto* counter) {
    using I = pointee_t<decltype(counter)>;
    const auto run = [&](auto* kernel) { launch_threads(s, w.threads, kernel, Jobs<1>{{w.job}, 0}); };
    w.whole ? run(&rotate<S, 16 / sizeof(S), I, 1>) : run(&rotate<S, 1, I, 1>);
  });
}

struct RopePlan final : KernelPlan {
  std::shared_ptr<const void> table;  // null: each run computes one in the workspace

  explicit RopePlan(const Call& c) : table(rope_table(c)) {}
  void launch(const Stream& s, const Call& c) const override {
    if (c.out[0].layout.numel() == 0) return;
    with_float(c.out[0].dtype, [&](auto* type) { launch_as<pointee_t<decltype(type)>>(s, c, table.get()); });
  }
  std::size_t workspace(const Call& c) const override {
    return table ? 0
                 : bytes_of_table(TableRows(c).positions.numel, c.attrs->as<RopeAttrs>().frequencies.size(),
                                  compute_type(c.in[0].dtype));
  }
};

// Two RoPE steps in one launch.
struct TwoRopes final : KernelPlan {
  std::shared_ptr<const void> tables[2];
  Jobs<2> jobs;
  unsigned blocks = 0;

  void launch(const Stream& s, const Call& c) const override {
    if (blocks == 0) return;
    with_float(c.out[0].dtype, [&](auto* type) {
      using S = pointee_t<decltype(type)>;
      launch_early(s, {blocks, threads_per_block}, &rotate<S, 16 / sizeof(S), unsigned, 2>, jobs);
    });
  }
  std::string choice(const Call&) const override { return "two RoPE steps in one kernel"; }
};

template <class S>
PlanPtr two_ropes(const Call& first, const Call& second) {
  auto p = std::make_unique<TwoRopes>();
  p->tables[0] = rope_table(first), p->tables[1] = rope_table(second);
  if (!p->tables[0] || !p->tables[1]) return nullptr;
  const RopeWork w[2] = {work_of<S>(first, p->tables[0].get()), work_of<S>(second, p->tables[1].get())};
  constexpr i64 most = 1 << 30;
  if (!w[0].whole || !w[1].whole || w[0].threads + w[1].threads > most) return nullptr;
  p->jobs = {{w[0].job, w[1].job}, blocks_for(w[0].threads, threads_per_block)};
  p->blocks = p->jobs.second + blocks_for(w[1].threads, threads_per_block);
  return p;
}

// Returns a plan for two RoPE steps, such as a layer's queries and keys. Returns null if one step needs the
// other step's result or memory. Also returns null if one step has no shared table, or if its rows do not
// consist of aligned pieces of 16 bytes.
PlanPtr plan_two_ropes(const Call& first, const Call& second) {
  const Arg &a = first.out[0], &b = second.out[0];
  if (a.dtype != b.dtype || meets(a, second.in) || meets(a, second.out) || meets(b, first.in)) return nullptr;
  PlanPtr plan;
  with_float(a.dtype, [&](auto* type) { plan = two_ropes<pointee_t<decltype(type)>>(first, second); });
  return plan;
}

}  // namespace

std::shared_ptr<const void> rope_table(const Call& c) {
  constexpr std::size_t most = std::size_t{4} << 20;
  const auto& a = c.attrs->as<RopeAttrs>();
  const DType compute = compute_type(c.in[0].dtype);
  if (c.in.size() > 1) return nullptr;
  const std::int64_t rows = c.in[0].layout.shape[c.in[0].layout.rank() - 2];
  const std::size_t bytes = bytes_of_table(rows, a.frequencies.size(), compute);
  if (bytes == 0 || bytes > most) return nullptr;
  // Programs and their copies use few different tables. A table exists as long as any plan uses it.
  using Key = std::tuple<int, DType, std::int64_t, std::int64_t, std::vector<double>>;
  static std::mutex guard;
  static auto& tables = *new std::map<Key, std::weak_ptr<const void>>;
  const std::lock_guard lock(guard);
  std::erase_if(tables, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<const void>& known = tables[{c.gpu.ordinal, compute, a.start, rows, a.frequencies}];
  if (std::shared_ptr<const void> table = known.lock()) return table;
  const std::shared_ptr<void> table = zeros_on_device(bytes);
  const Stream stream{nullptr, c.gpu, nullptr, {}};  // the stream on which tables are copied
  Region<1> counted;
  counted.axis(rows, {1});
  compute == DType::f64 ? launch_table(stream, static_cast<double*>(table.get()), counted, Arg{}, a)
                        : launch_table(stream, static_cast<float*>(table.get()), counted, Arg{}, a);
  check(cudaStreamSynchronize(nullptr), "a table of cosines");
  known = table;
  return table;
}

extern const Kernel rope_kernel{&plan_as<RopePlan>};

extern const FusionRule two_rope_steps_rule{
    "two RoPE steps",
    [](const Upcoming& next) {
      const auto are_ropes = [](const Step& a, const Step& b) {
        return rope_of(*a.op, a.attrs) && rope_of(*b.op, b.attrs);
      };
      return FusionMatch{next.is_next(are_ropes, 1) ? std::size_t{2} : 0};
    },
    [](const Upcoming& next, const FusionMatch&) { return plan_two_ropes(next.call(0), next.call(1)); }};

}  // namespace tg::cuda
