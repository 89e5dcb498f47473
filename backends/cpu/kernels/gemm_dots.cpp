// GEMM by dot products. A part of the work is a range of columns of C. It iterates over the rows of C in
// small groups, so the columns of B are read from memory once. A vector accumulates the products along k in
// order, and the sum of its lanes is an element of C. The additions are therefore the same in any group or
// range.
#include <cstdio>

#include "backends/cpu/kernels/gemm_parts.h"

namespace tg::cpu::TG_ISA {
namespace {

constexpr i64 few_rows = 8;                                    // up to this many rows, dots are fastest
constexpr i64 more_rows = 32, long_row = 512;                  // or up to more_rows, if k ≥ long_row
constexpr int group_rows = TG_VECTOR_BYTES == 64 ? 8 : 4;      // rows whose sums stay in registers
constexpr i64 few_columns = 32, most_columns = 64;             // of a range
constexpr i64 span_elements = piece_size(128 << 10, 1 << 10);  // elements of B in a range; they stay in L2
constexpr i64 chunk_bytes = piece_size(2048, 256);  // size of a row's chunk; a group's chunks stay in L1
// Number of chunks whose sum is added to the total at a time. This bounds the rounding error.
constexpr i64 chunks_together = piece_size(32, 2);
constexpr i64 many_rows = 4 * group_rows;  // rows that share the cost of copying a range of B

// The number of rows of a tile. The sums of a tile are in registers. If registers are left, the next tile
// begins while the lanes of this tile are summed.
constexpr int tile_rows = 4;
constexpr int most_columns_at_once = 4;
constexpr int columns_at_once(int rows) {
  if (TG_VECTOR_BYTES == 64 || rows <= 2) return most_columns_at_once;
  return TG_VECTOR_BYTES == 32 ? 3 : 2;
}
constexpr i64 own_columns = most_columns + most_columns_at_once;  // a range, rounded up to whole tiles

// Whether the tiles of a group write only its columns.
bool ends_with_tile(i64 rows, i64 columns) {
  const int at_once = columns_at_once(static_cast<int>(at_most(rows, tile_rows)));
  return at_once != 3 && columns % at_once == 0;  // three sums are stored as four
}

// Adds pairs of lanes. The lane numbers of a pair differ only in bit `half`. Result lanes with this bit
// contain the sums of b, other lanes the sums of a.
template <int half, class V, int... lane>
TG_INLINE V add_halves(V a, V b, std::integer_sequence<int, lane...>) {
  constexpr int W = sizeof...(lane);
  return __builtin_shufflevector(a, b, (lane & half ? W + lane : lane)...) +
         __builtin_shufflevector(a, b, (lane & half ? W + lane - half : lane + half)...);
}

// v[0]: lane i·(lanes / N) becomes the sum of the lanes of v[i], in the order of reduce_add.
template <int N, class V, int half = lanes<V> / 2>
TG_INLINE void reduce_together(V* v) {
  if constexpr (half > 0) {
    constexpr int left = N > 1 ? N / 2 : 1;
#pragma GCC unroll 8
    for (int i = 0; i < left; ++i)
      v[i] = add_halves<half>(v[i], v[i + N / 2], std::make_integer_sequence<int, lanes<V>>());
    reduce_together<left, V, half / 2>(v);
  }
}

template <int N, class V, int... lane>
TG_INLINE V in_front(V v, std::integer_sequence<int, lane...>) {
  return N == lanes<V> ? v : __builtin_shufflevector(v, v, (lane * (lanes<V> / N) % lanes<V>)...);
}
template <int first, class T, class V, int... lane>
TG_INLINE void store_lanes(T* to, V v, std::integer_sequence<int, lane...>) {
  const auto some = __builtin_shufflevector(v, v, (first + lane)...);
  __builtin_memcpy(to, &some, sizeof some);
}

// to[i·ld + j] = the sum of the lanes of v[i·J + j], for `count` vectors, starting at vector `first`.
template <int J, int count, int first = 0, class T, class V>
TG_INLINE void reduce_tile(V* v, T* to, i64 ld) {
  constexpr int W = lanes<V>, N = count >= 16 && W >= 16 ? 16
                                  : count >= 8 && W >= 8 ? 8
                                  : count >= 4 && W >= 4 ? 4
                                                         : 2;
  reduce_together<N>(v);
  const V sums = in_front<N>(v[0], std::make_integer_sequence<int, W>());
  constexpr int side = N < J ? N : J;  // number of adjacent sums
  each_constant<N / side>([&](auto i) {
    constexpr int nth = first + i * side;
    store_lanes<i * side>(to + nth / J * ld + nth % J, sums, std::make_integer_sequence<int, side>());
  });
  if constexpr (count > N) reduce_tile<J, count - N, first + N>(v + N, to, ld);
}

// The part of k that a call of `dots` processes. `kept` [columns][M] passes the sums of the lanes from part
// to part. The first part does not read it, and the last part does not write it.
template <class V>
struct Chunk {
  i64 k;
  bool first, last;
  V* kept;
};

// to[i·ld + j] = Σ_p a(i, p)·b(p, j) for M rows and the J columns at `column`. The sums of the lanes are in
// `kept`, with stride `kept_col`.
template <class E, int M, int J, int kept_col>
TG_INLINE void dots_tile(const Chunk<typename E::V>& chunk, const typename E::Storage* a, i64 a_row,
                         const typename E::Storage* const* column, typename E::V* kept, typename E::T* to,
                         i64 ld) {
  using V = typename E::V;
  using S = typename E::Storage;
  constexpr int W = E::width;
  V sum[M * J] = {};
  if (!chunk.first) {
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) sum[i * J + j] = kept[j * kept_col + i];
  }
  const auto step = [&](i64 p, auto&& read) __attribute__((always_inline)) {
    V bv[J];
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) bv[j] = read(column[j] + p);
#pragma GCC unroll 4
    for (int i = 0; i < M; ++i) {
      const V av = read(a + i * a_row + p);
#pragma GCC unroll 4
      for (int j = 0; j < J; ++j) sum[i * J + j] = E::add_product(av, bv[j], sum[i * J + j]);
    }
  };
  i64 p = 0;
  for (; p + W <= chunk.k; p += W)
    step(
        p, [](const S* from) __attribute__((always_inline)) { return E::read(from); });
  if (p < chunk.k)
    step(
        p, [rest = static_cast<int>(chunk.k - p)](const S* from)
               __attribute__((noinline)) { return E::read_some(from, rest); });
  if (chunk.last) {
    constexpr int side = J == 3 ? 4 : J;  // sums of a row, as a power of two
    V all[M * side];
#pragma GCC unroll 16
    for (int i = 0; i < M * side; ++i) all[i] = sum[i / side * J + (i % side < J ? i % side : J - 1)];
    return reduce_tile<side, M * side>(all, to, ld);
  }
#pragma GCC unroll 4
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < J; ++j) kept[j * kept_col + i] = sum[i * J + j];
}

// Computes dots for M rows and `columns` columns. Elements after these columns, up to the end of the last
// tile, are undefined.
template <class E, int M>
void dots(const Chunk<typename E::V>& chunk, const typename E::Storage* a, i64 a_row,
          const typename E::Storage* b, i64 b_col, i64 columns, typename E::T* to, i64 ld) {
  constexpr int tiles = (M + tile_rows - 1) / tile_rows, J = columns_at_once(tiles > 1 ? tile_rows : M);
  for (i64 j0 = 0; j0 < columns; j0 += J) {
    const typename E::Storage* column[J];
    for (int j = 0; j < J; ++j) column[j] = b + at_most(j0 + j, columns - 1) * b_col;  // repeat the last one
    each_constant<tiles>([&](auto tile) __attribute__((always_inline)) {
      constexpr int i = tile * M / tiles, rows = (tile + 1) * M / tiles - i;
      dots_tile<E, rows, J, M>(chunk, a + i * a_row, a_row, column, chunk.kept + j0 * M + i, to + i * ld + j0,
                               ld);
    });
  }
}

template <class E, int... i>
constexpr auto dots_of_rows(i64 rows, std::integer_sequence<int, i...>) {
  constexpr decltype(&dots<E, 1>) of[] = {dots<E, i + 1>...};
  return of[rows - 1];
}

// Returns C^T = B^T·A^T if C has fewer columns than rows, and the columns fit in a group.
Gemm with_few_rows(const Gemm& g) {
  return g.n < g.m && g.n <= few_rows && g.a.col == 1 ? swapped(g) : g;
}

// How the work is divided, and which operands are copied. Results do not depend on the plan.
struct DotPlan {
  i64 batches, span, spans, row_blocks;
  bool pairs, widen;    // multiply pairs of bf16; convert copies of 16-bit operands
  bool copy_a, copy_b;  // copy a chunk of a group's rows, or of a range's columns
  i64 chunks;           // number of chunks of k
  i64 chunk;            // elements; the last chunk has fewer than twice this number

  DotPlan(const Gemm& g, int threads) : batches(batches_of(g)), pairs(is_pairs(g)) {
    // If there are many rows, each range reads A again. A large A is not in L2.
    const i64 enough = 4 * threads;
    const bool wide = g.m >= many_rows && batches * g.n >= enough * most_columns;
    span = at_least(8, at_most(wide ? most_columns : few_columns, span_elements / g.k));
    spans = ceil_div(g.n, span);
    const i64 groups = ceil_div(g.m, group_rows), parts = batches * spans;
    row_blocks = threads == 1 || parts >= enough ? 1 : at_most(groups, ceil_div(enough, parts));
    widen = !pairs && size_of(g.type) == 2 && g.m > group_rows;
    chunk = chunk_bytes / (pairs ? 2 : g.type == DType::f64 ? 8 : 4);
    chunks = at_least(1, g.k / chunk);
    // If the row stride is a power of two, chunks of different rows evict each other from L1.
    const bool rows_collide = g.a.row * static_cast<i64>(size_of(g.type)) % 2048 == 0;
    copy_b = widen || (g.m >= many_rows && chunks > 1);
    copy_a = copy_b || g.a.col != 1 || (g.m > group_rows && chunks > 1 && rows_collide);
  }
  i64 start(i64 q, i64 k) const { return q < chunks ? q * chunk : k; }
  i64 element_bytes(const Gemm& g) const { return widen ? 4 : static_cast<i64>(size_of(g.type)); }
  i64 a_bytes(const Gemm& g) const {
    return copy_a ? aligned(group_rows * at_most(g.k, 2 * chunk) * element_bytes(g)) : 0;
  }
  i64 b_bytes(const Gemm& g) const { return copy_b ? aligned(span * g.k * element_bytes(g)) : 0; }
};

template <class T>
bool is_plain(const Gemm& g) {  // C consists of the unmodified sums
  return !g.d.data && g.c.col == 1 && size_of(g.out_type) == sizeof(T);
}

// Copies lines of k elements to consecutive memory. `line` is the stride of lines, and `along` the stride in
// a line.
template <class S, class To>
void copy_lines(i64 lines, i64 k, const S* from, i64 line, i64 along, To* to) {
  if constexpr (std::is_same_v<To, compute_t<S>>) {
    if (along == 1) return copy_rows(lines, k, k, from, line, to, k);
  } else {
    if (along == 1) {
      for (i64 i = 0; i < lines; ++i)
        __builtin_memcpy(to + i * k, from + i * line, static_cast<std::size_t>(k) * sizeof(S));
      return;
    }
  }
  for (i64 i = 0; i < lines; ++i)
    for (i64 p = 0; p < k; ++p) to[i * k + p] = static_cast<To>(from[i * line + p * along]);
}

// E: how elements are read. S: how they are stored in memory. Copies have the storage type of E.
template <class E, class S>
void run(const Gemm& g, const DotPlan& plan, Worker& w) {
  using T = typename E::T;
  using V = typename E::V;
  using In = typename E::Storage;
  In* const copied_a = reinterpret_cast<In*>(w.scratch);                    // [rows, chunk]
  In* const copied_b = reinterpret_cast<In*>(w.scratch + plan.a_bytes(g));  // [columns, chunk] for each chunk
  w.each(plan.batches * plan.spans * plan.row_blocks, [&](i64 part) {
    const i64 item = part / (plan.spans * plan.row_blocks), block = part % plan.row_blocks;
    const i64 j0 = part / plan.row_blocks % plan.spans * plan.span, columns = at_most(g.n - j0, plan.span);
    const i64 first = block * g.m / plan.row_blocks, rows = (block + 1) * g.m / plan.row_blocks - first;
    const S* const from_b = element<T, S>(g, g.b, item, 0, j0);
    if (plan.copy_b)
      for (i64 q = 0; q < plan.chunks; ++q) {
        const i64 p = plan.start(q, g.k);
        copy_lines(columns, plan.start(q + 1, g.k) - p, from_b + p, g.b.col, 1, copied_b + p * columns);
      }
    const i64 groups = ceil_div(rows, group_rows);
    for (i64 group = 0; group < groups; ++group) {
      const i64 i0 = first + group * rows / groups, count = first + (group + 1) * rows / groups - i0;
      const S* const from_a = element<T, S>(g, g.a, item, i0, 0);
      // Sums are written directly to C if they need no further processing and no tile extends beyond the last
      // column.
      T own[group_rows * own_columns], *sums = own;
      i64 row = own_columns;
      if (is_plain<T>(g) && ends_with_tile(count, columns))
        sums = const_cast<T*>(element<T, T>(g, g.c, item, i0, j0)), row = g.c.row;
      V kept[own_columns * group_rows], total[own_columns * group_rows];
      for (i64 q = 0; q < plan.chunks; ++q) {
        // After every `chunks_together` chunks, the sums restart at zero. The last chunk starts with the
        // total of all previous chunks.
        const bool is_last = q + 1 == plan.chunks;
        if (plan.chunks > chunks_together && q > 0 && (is_last || q % chunks_together == 0))
          for (i64 i = 0; i < columns * count; ++i) {
            total[i] = q == chunks_together ? kept[i] : total[i] + kept[i];
            kept[i] = is_last ? total[i] : V{};
          }
        const i64 p = plan.start(q, g.k), k = plan.start(q + 1, g.k) - p;
        const In *a = copied_a, *b = copied_b + p * columns;
        i64 a_row = k, b_col = k;
        if (plan.copy_a) copy_lines(count, k, from_a + p * g.a.col, g.a.row, g.a.col, copied_a);
        if constexpr (std::is_same_v<In, S>) {
          if (!plan.copy_a) a = from_a + p, a_row = g.a.row;
          if (!plan.copy_b) b = from_b + p, b_col = g.b.col;
        }
        dots_of_rows<E>(count, std::make_integer_sequence<int, group_rows>())(
            {k, q == 0, is_last, kept}, a, a_row, b, b_col, columns, sums, row);
      }
      if (sums == own) write_out<T>(g, item, i0, i0 + count, j0, j0 + columns, own, own_columns);
    }
  });
}

void run(const Gemm& g, const DotPlan& plan, Worker& w) {
  if constexpr (has_pairs)
    if (plan.pairs) return run<Pairs, bfloat16>(g, plan, w);
  switch (g.type) {
    case DType::f64:
      return run<Numbers<double>, double>(g, plan, w);
    case DType::bf16:
      return plan.widen ? run<Numbers<float>, bfloat16>(g, plan, w)
                        : run<Numbers<bfloat16>, bfloat16>(g, plan, w);
    case DType::f16:
      return plan.widen ? run<Numbers<float>, float16>(g, plan, w)
                        : run<Numbers<float16>, float16>(g, plan, w);
    default:
      return run<Numbers<float>, float>(g, plan, w);
  }
}

}  // namespace

bool is_dots(const Gemm& g) {
  if (g.b.row != 1 || g.k < 2 * Tile<float>::width) return false;
  const bool tiles = is_for_tiles(g);
  if (g.batch_invariant) return !tiles;
  if (g.a.col != 1) return false;
  return at_most(g.m, g.n) <= few_rows || (g.m <= more_rows && g.k >= long_row && !tiles);
}

constinit const GemmCase gemm_dots{
    [](const Gemm& given, int threads) {
      const Gemm g = with_few_rows(given);
      const DotPlan plan(g, threads);
      return Scratch{static_cast<std::size_t>(plan.a_bytes(g) + plan.b_bytes(g)), 0};
    },
    [](const Gemm& given, Worker& w) {
      const Gemm g = with_few_rows(given);
      run(g, DotPlan(g, w.threads), w);
    },
    [](const Gemm& given, int threads, char* text, std::size_t size) {
      const Gemm g = with_few_rows(given);
      const DotPlan plan(g, threads);
      std::snprintf(text, size, "dot products, rows: %lld, parts: %lld", static_cast<long long>(g.m),
                    static_cast<long long>(plan.batches * plan.spans * plan.row_blocks));
    }};

}  // namespace tg::cpu::TG_ISA
