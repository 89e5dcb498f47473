// Products of a few query rows with many keys or values, for attention with few queries. Most of the time is
// needed to read the keys and values. They are read in place, and only once for all query rows that share
// them. The lanes of a vector are elements of a row. A score is a dot product, whose lanes are summed at the
// end. If a vector has n lanes, the lanes of n scores are summed together.
#pragma once

#include "backends/cpu/kernels/simd.h"

namespace tg::cpu::TG_ISA {

// ---- chunks ----

// A chunk is the unit of conversion. Its vectors contain the elements in an order that depends only on the
// type. Sums over a row do not depend on this order, and store_chunk restores the original order.
template <class S>
struct Chunk {
  static constexpr int vectors = 1, size = lanes<vector_t<S>>;
};
template <>
struct Chunk<bfloat16> {  // even-numbered elements, then odd ones, without a shuffle: the upper and lower
                          // halves of its words
  static constexpr int vectors = 2, size = 2 * lanes<F32>;
};

template <class S, class V>
TG_INLINE void load_chunk(const S* p, V* to) {
  to[0] = load(p);
}
TG_INLINE void load_chunk(const bfloat16* p, F32* to) {
  U32 pairs;
  __builtin_memcpy(&pairs, p, sizeof pairs);
  to[0] = (F32)(pairs << 16), to[1] = (F32)(pairs & 0xffff0000u);
}
template <class S, class V>
TG_INLINE void store_chunk(S* p, const V* from) {
  store(p, from[0]);
}
TG_INLINE void store_chunk(bfloat16* p, const F32* from) {
  const U32 pairs = bf16_bits(from[0]) | bf16_bits(from[1]) << 16;
  __builtin_memcpy(static_cast<void*>(p), &pairs, sizeof pairs);
}

// Load or store the first n elements of a chunk. A load sets the other elements to 0. A store leaves the
// memory after the n elements unchanged.
template <class S, class V>
[[gnu::noinline]] void load_part_of_chunk(const S* p, i64 n, V* to) {
  S all[Chunk<S>::size] = {};
  for (i64 i = 0; i < n; ++i) all[i] = p[i];
  load_chunk(all, to);
}
template <class S, class V>
[[gnu::noinline]] void store_part_of_chunk(S* p, i64 n, const V* from) {
  S all[Chunk<S>::size];
  store_chunk(all, from);
  for (i64 i = 0; i < n; ++i) p[i] = all[i];
}

// Calls f(offset of the chunk in padded rows, V vectors) for each chunk of a row of `size` elements.
template <class S, class F>
TG_INLINE void each_chunk(const S* row, i64 size, F f) {
  using V = vector_t<S>;
  V v[Chunk<S>::vectors];
  i64 e = 0;
  for (; e + Chunk<S>::size <= size; e += Chunk<S>::size) load_chunk(row + e, v), f(e, v);
  if (e < size) load_part_of_chunk(row + e, size - e, v), f(e, v);
}

// Rows at arbitrary addresses in memory. Each read of a row also prefetches data into a cache near the core:
// the element at distance `skip` in the row that is `ahead` rows later.
template <class S>
struct RowsInMemory {
  using Element = S;
  static constexpr bool fetches = true;
  const S* data;
  const i64* place;  // [rows + ahead]: offset of each row, in elements from `data`
  i64 ahead, skip;
  const S* at(i64 r) const { return data + place[r]; }
  const S* fetched_at(i64 r) const { return at(r + ahead) + skip; }
  RowsInMemory from_column(i64 e) const { return {data + e, place, ahead, skip}; }
};

// Rows that need no prefetch instructions. They are in a cache, or the hardware prefetches them in time.
template <class S>
struct RowsInCache {
  using Element = S;
  static constexpr bool fetches = false;
  const S* data;
  const i64* place;
  const S* at(i64 r) const { return data + place[r]; }
  const S* fetched_at(i64 r) const { return at(r); }
  RowsInCache from_column(i64 e) const { return {data + e, place}; }
};

// Divides rows into blocks, the largest ones first, and calls f(number of rows as a constant, first row) for
// each.
template <int most, class F>
TG_INLINE void each_block(i64 rows, F f) {
  i64 r = 0;
  for (; r + most <= rows; r += most) f(std::integral_constant<int, most>(), r);
  if constexpr (most > 4)
    if (r + 4 <= rows) f(std::integral_constant<int, 4>(), r), r += 4;
  if constexpr (most > 2)
    if (r + 2 <= rows) f(std::integral_constant<int, 2>(), r), r += 2;
  if constexpr (most > 1)
    if (r < rows) f(std::integral_constant<int, 1>(), r);
}

// ---- sums of lanes, for as many vectors as a vector has lanes ----

// Divides both vectors into groups of 2·Half lanes. Returns the lanes in the first or second half of each
// group. If a group has less than 16 bytes, lanes stay within their block of 16 bytes.
template <int Half, bool Second, class V, int... l>
TG_INLINE V halves_of(V a, V b, std::integer_sequence<int, l...>) {
  constexpr int W = sizeof...(l), unit = 16 / sizeof(V{}[0]), span = Half < unit ? unit : W;
  constexpr auto source = [](int lane) {  // first half of a span: lanes of a; second half: lanes of b
    const int place = lane % span, nth = place % (span / 2);
    return place / (span / 2) * W + lane / span * span + nth / Half * 2 * Half + nth % Half +
           (Second ? Half : 0);
  };
  return __builtin_shufflevector(a, b, source(l)...);
}

// Returns the vector at a position in the tree. Its blocks of 16 bytes are interleaved.
template <class V>
constexpr int vector_of_place(int place) {
  constexpr int unit = 16 / sizeof(V{}[0]), blocks = lanes<V> / unit;
  return place % blocks * unit + place / blocks;
}

// Lane i of the result is the sum over all lanes of v[i]. First the halves of a vector are added, then the
// quarters, and so on.
template <int First, int Count, class V>
TG_INLINE V lane_sums_of(const V* v) {
  if constexpr (Count == 1) {
    return v[vector_of_place<V>(First)];
  } else {
    constexpr int W = lanes<V>, half = W / Count;
    const V a = lane_sums_of<First, Count / 2>(v), b = lane_sums_of<First + Count / 2, Count / 2>(v);
    constexpr auto all = std::make_integer_sequence<int, W>();
    return halves_of<half, false>(a, b, all) + halves_of<half, true>(a, b, all);
  }
}
template <class V>
TG_INLINE V lane_sums(const V* v) {
  return lane_sums_of<0, lanes<V>>(v);
}

// ---- scores ----

// Computes one vector of scores a[h][j] = ⟨q[h], k[j]⟩ per row h, for Heads rows of q and keys j = key, key +
// 1, …. Rows of q consist of chunks padded with zeros. Instead of keys at `end` and later, the last key is
// read.
template <int Heads, class Keys, class C>
TG_INLINE void score_vector(const C* q, i64 q_row, const Keys& k, i64 key, i64 end, i64 size, C* a,
                            i64 a_row) {
  using V = vector_t<C>;
  using S = typename Keys::Element;
  constexpr int W = lanes<V>, keys = W / Heads;
  V sum[W];  // [Heads][keys]
  // Number of keys read in parallel. It is small if the code relies on the hardware prefetcher.
  constexpr int few = Keys::fetches && Heads < 4 ? Heads : 4, together = keys < few ? keys : few;
#pragma GCC unroll 16
  for (int first = 0; first < keys; first += together) {
    const S *row[together], *next[together];
#pragma GCC unroll 4
    for (int j = 0; j < together; ++j) {
      const i64 r = key + first + j < end ? key + first + j : end - 1;
      row[j] = k.at(r), next[j] = k.fetched_at(r);
    }
    V s[Heads][together] = {};
    const auto add = [&](i64 e, auto read) {
      constexpr int per_chunk = Chunk<S>::vectors;
      V kv[together][per_chunk];
#pragma GCC unroll 4
      for (int j = 0; j < together; ++j) read(row[j] + e, next[j] + e, kv[j]);
#pragma GCC unroll 2
      for (int c = 0; c < per_chunk; ++c)
#pragma GCC unroll 8
        for (int h = 0; h < Heads; ++h) {
          const V qv = load(q + h * q_row + e + c * W);
#pragma GCC unroll 4
          for (int j = 0; j < together; ++j) s[h][j] = fma(qv, kv[j][c], s[h][j]);
        }
    };
    i64 e = 0;
    for (; e + Chunk<S>::size <= size; e += Chunk<S>::size)
      add(e, [](const S* p, const S* later, V* to) {
        if (Keys::fetches) __builtin_prefetch(later, 0, 2);
        load_chunk(p, to);
      });
    if (e < size) {
      const i64 rest = size - e;
      add(e, [rest](const S* p, const S*, V* to) { load_part_of_chunk(p, rest, to); });
    }
#pragma GCC unroll 8
    for (int h = 0; h < Heads; ++h)
#pragma GCC unroll 4
      for (int j = 0; j < together; ++j) sum[h * keys + first + j] = s[h][j];
  }
  C all[W];
  store(all, lane_sums(sum));
#pragma GCC unroll 8
  for (int h = 0; h < Heads; ++h) __builtin_memcpy(a + h * a_row + key, all + h * keys, keys * sizeof(C));
}

// a[h][j] = ⟨q[h], k[j]⟩ for keys from … to − 1. Scores of other keys, up to the next multiple of W, are
// undefined.
template <int Heads, class Keys, class C>
void score_rows(const C* q, i64 q_row, const Keys& k, i64 from, i64 to, i64 size, C* a, i64 a_row) {
  constexpr int keys = lanes<vector_t<C>> / Heads;
  for (i64 key = from; key < to; key += keys) score_vector<Heads>(q, q_row, k, key, to, size, a, a_row);
}

// ---- values ----

// g[h][…] += Σ_j p[h][j]·v[j][…] over keys from … to − 1, for Heads rows and Chunks chunks of columns. If
// Part is true, there are only `columns` columns.
template <int Heads, int Chunks, bool Part, class Values, class C>
TG_INLINE void add_value_block(const C* p, i64 p_row, const Values& v, i64 from, i64 to, i64 columns, C* g,
                               i64 g_row) {
  using V = vector_t<C>;
  using S = typename Values::Element;
  constexpr int W = lanes<V>, per_chunk = Chunk<S>::vectors, vectors = Chunks * per_chunk;
  V sum[Heads][vectors];
#pragma GCC unroll 8
  for (int h = 0; h < Heads; ++h)
#pragma GCC unroll 16
    for (int i = 0; i < vectors; ++i) sum[h][i] = load(g + h * g_row + i * W);
  for (i64 j = from; j < to; ++j) {
    const S *row = v.at(j), *next = v.fetched_at(j);
    V weight[Heads];
#pragma GCC unroll 8
    for (int h = 0; h < Heads; ++h) weight[h] = splat<V>(p[h * p_row + j]);
#pragma GCC unroll 8
    for (int c = 0; c < Chunks; ++c) {
      V value[per_chunk];
      if constexpr (Part) {
        load_part_of_chunk(row, columns, value);
      } else {
        if (Values::fetches) __builtin_prefetch(next + c * Chunk<S>::size, 0, 2);
        load_chunk(row + c * Chunk<S>::size, value);
      }
#pragma GCC unroll 2
      for (int i = 0; i < per_chunk; ++i)
#pragma GCC unroll 8
        for (int h = 0; h < Heads; ++h)
          sum[h][c * per_chunk + i] = fma(weight[h], value[i], sum[h][c * per_chunk + i]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < Heads; ++h)
#pragma GCC unroll 16
    for (int i = 0; i < vectors; ++i) store(g + h * g_row + i * W, sum[h][i]);
}

// Adds values to any number of rows of g, in blocks that fit into registers.
template <int Chunks, bool Part, class Values, class C>
void add_value_rows(i64 rows, const C* p, i64 p_row, const Values& v, i64 from, i64 to, i64 columns, C* g,
                    i64 g_row) {
  using S = typename Values::Element;
  constexpr int sums = TG_VECTOR_BYTES == 64 ? 16 : 8, fit = sums / (Chunks * Chunk<S>::vectors);
  each_block<(fit > 4 ? 4 : fit)>(
      rows, [&](auto block, i64 r) __attribute__((always_inline)) {
        add_value_block<block, Chunks, Part>(p + r * p_row, p_row, v, from, to, columns, g + r * g_row,
                                             g_row);
      });
}

// g[r] += Σ_j p[r][j]·v[j] over keys from … to − 1. Rows of g consist of chunks.
template <class Values, class C>
void add_values(i64 rows, const C* p, i64 p_row, const Values& v, i64 from, i64 to, i64 size, C* g,
                i64 g_row) {
  using S = typename Values::Element;
  constexpr int unit = Chunk<S>::size, four = 4 / Chunk<S>::vectors, two = 2, eight = 2 * four;
  i64 e = 0;
  if (rows < 4)
    for (; e + eight * unit <= size; e += eight * unit)
      add_value_rows<eight, false>(rows, p, p_row, v.from_column(e), from, to, 0, g + e, g_row);
  for (; e + four * unit <= size; e += four * unit)
    add_value_rows<four, false>(rows, p, p_row, v.from_column(e), from, to, 0, g + e, g_row);
  for (; e + two * unit <= size; e += two * unit)
    add_value_rows<two, false>(rows, p, p_row, v.from_column(e), from, to, 0, g + e, g_row);
  for (; e + unit <= size; e += unit)
    add_value_rows<1, false>(rows, p, p_row, v.from_column(e), from, to, 0, g + e, g_row);
  if (e < size) add_value_rows<1, true>(rows, p, p_row, v.from_column(e), from, to, size - e, g + e, g_row);
}

}  // namespace tg::cpu::TG_ISA
