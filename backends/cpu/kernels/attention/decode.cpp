// FlashForward2 [Stratos, FlashAttention §D] for few queries and many keys, as in decoding: the keys of a
// head are cut into ranges that all threads share, and each range is read once for all query heads that share
// it. A range leaves c, π and G = Σ exp(A − c)·V of its keys; they are added in the order of the ranges:
//   c = maxᵣ cᵣ,  π = Σᵣ exp(cᵣ − c)·πᵣ,  O = (Σᵣ exp(cᵣ − c)·Gᵣ) ⊘ π,  ξ = c + log π.
// Ranges and tiles begin at fixed keys, whatever a query sees, so the bits of a row depend on nothing but the
// row: neither on the rest of the batch, nor on the room for keys, nor on who computes what.
#include "backends/cpu/kernels/attention/decode.h"

#include <cstdio>

#include "backends/cpu/kernels/attention/few_rows.h"
#include "backends/cpu/kernels/attention/score_tile.h"

namespace tg::cpu::TG_ISA {
namespace {

constexpr i64 most_queries = 8, most_rows = 64;  // of a head, and of all heads that share a key head
// Four rows or more make the products of a line come in bursts, and their registers are filled by several
// keys at a time; then the hardware does not see what comes next, and lines are fetched so far ahead. With
// fewer rows it does, and does it better.
constexpr i64 ahead_bytes = 8192, rows_to_fetch_for = 4;

template <class T>
T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
T larger(T a, T b) {
  return a > b ? a : b;
}

// How keys are cut: by d alone. A range leaves rows·dv numbers, which are written and read again. A tile is
// small enough for a second-level cache to hold its keys until they have been read as values, where they are
// both.
struct Cut {
  explicit Cut(const AttentionCall& x)
      : range(x.d <= 64 ? 512 : 256),
        tile(x.d <= 128   ? 128
             : x.d <= 256 ? 64
                          : 32) {}
  i64 range, tile;
};
// Values of so many keys are added to a few rows before the next rows begin, which find them in a cache.
constexpr i64 keys_together = 16;

i64 rows_of(const AttentionCall& x) {
  return x.H / x.Hk * x.L;
}
i64 ranges_of(const AttentionCall& x) {
  const i64 range = Cut(x).range;
  return (x.T + range - 1) / range;
}

// Values may be the first columns of keys (MLA with absorbed projections).
bool values_are_keys(const AttentionCall& x) {
  return x.v.data == x.k.data && x.v.batch == x.k.batch && x.v.head == x.k.head && x.v.row == x.k.row &&
         x.dv <= x.d;
}

// Rows of a narrower type are converted once if more than one block of query rows reads them.
template <class C>
bool copies(const AttentionCall& x) {
  return size_of(x.type) != sizeof(C) && rows_of(x) > 8;
}

template <class C>
i64 chunk_of(const AttentionCall& x) {
  i64 size = 0;
  with_storage<C>(
      x.type, [&](auto* tag) { size = Chunk<std::remove_cv_t<std::remove_pointer_t<decltype(tag)>>>::size; });
  return size;
}

template <class C>
struct Scratch {
  Scratch(Carver& carver, const AttentionCall& x) {
    constexpr int W = Tile<C>::width;
    const i64 rows = rows_of(x), tile = Cut(x).tile;
    const i64 chunk = chunk_of<C>(x);
    padded_d = round_up(x.d, chunk), padded_dv = round_up(x.dv, chunk);
    start = carver.take<i64>(x.B + 1);
    first = carver.take<std::int32_t>(x.L), last = carver.take<std::int32_t>(x.L);
    q = carver.take<C>(rows * padded_d);
    a = carver.take<C>(rows * tile);
    sum = carver.take<C>(rows * W);
    factor = carver.take<C>(ranges_of(x));
    k = copies<C>(x) ? carver.take<C>(tile * padded_d) : nullptr;
    v = copies<C>(x) ? carver.take<C>(tile * padded_dv) : nullptr;
  }
  i64 padded_d, padded_dv;
  i64* start;                  // [B + 1]: the first part of each batch entry
  std::int32_t *first, *last;  // [L]: keys that each query sees
  C* q;                        // [rows × padded_d], scaled
  C* a;                        // [rows × tile]: scores, then exp(A − c)
  C* sum;                      // [rows × W]: π, lane by lane
  C* factor;                   // [ranges]: exp(cᵣ − c) of a row
  C *k, *v;                    // [tile × padded]: copies, or null
};

// What each part leaves, in memory of all threads.
template <class C>
struct Partials {
  Partials(Carver& carver, const AttentionCall& x) {
    const i64 parts = key_heads(x) * ranges_of(x);
    rows = rows_of(x), padded = round_up(x.dv, chunk_of<C>(x));
    g = carver.take<C>(parts * rows * padded);
    top = carver.take<C>(parts * rows), sum = carver.take<C>(parts * rows);
  }
  i64 rows, padded;
  C* g;          // [parts, rows, padded]
  C *top, *sum;  // [parts, rows]: c in units of log 2, and π
};

// Keys that some query of a batch entry sees, and the ranges in which they are.
struct Seen {
  Seen(const AttentionCall& x, i64 b) {
    const KeyRange keys = Band(x, sequence_of_query(x, static_cast<int>(b), 0)).some_of(0, x.L - 1);
    from = keys.from, to = keys.to;
    const i64 range = Cut(x).range;
    first = from / range;
    ranges = from < to ? (to + range - 1) / range - first : 0;
  }
  i64 from, to, first, ranges;
};

// f(rows as a constant, first row) for blocks of rows, the largest first.
template <class C, class F>
TG_INLINE void each_block(i64 rows, F f) {
  constexpr int most = Tile<C>::width < 8 ? Tile<C>::width : 8;
  i64 r = 0;
  for (; r + most <= rows; r += most) f(std::integral_constant<int, most>(), r);
  if constexpr (most > 4)
    if (r + 4 <= rows) f(std::integral_constant<int, 4>(), r), r += 4;
  if constexpr (most > 2)
    if (r + 2 <= rows) f(std::integral_constant<int, 2>(), r), r += 2;
  if (r < rows) f(std::integral_constant<int, 1>(), r);
}

template <class S, class C>
class Range {
 public:
  Range(const AttentionCall& x, const Scratch<C>& s, const Partials<C>& all, i64 part, i64 b, i64 key_head)
      : x_(x), s_(s), b_(b), key_head_(key_head), rows_(all.rows) {
    g_ = all.g + part * rows_ * all.padded;
    top_ = all.top + part * rows_, sum_ = all.sum + part * rows_;
  }

  // G, c and π of keys from … to − 1.
  void run(i64 from, i64 to) {
    load_queries();
    for (i64 r = 0; r < rows_; ++r) top_[r] = static_cast<C>(-__builtin_inf());
    for (i64 e = 0; e < rows_ * W; ++e) s_.sum[e] = 0;
    for (i64 e = 0; e < rows_ * s_.padded_dv; ++e) g_[e] = 0;
    for (i64 key0 = from / tile_ * tile_; key0 < to; key0 += tile_)
      add_tile(key0, larger(from, key0) - key0, smaller(to, key0 + tile_) - key0);
    for (i64 r = 0; r < rows_; ++r) sum_[r] = reduce_add(load(s_.sum + r * W));
  }

 private:
  using V = vector_t<C>;
  static constexpr int W = Tile<C>::width;

  // Row r is query r % L of head r / L of the group.
  void load_queries() {
    for (i64 i = 0; i < x_.L; ++i) {
      const KeyRange keys = keys_of_query(x_, static_cast<int>(b_), static_cast<int>(i));
      s_.first[i] = keys.from, s_.last[i] = keys.to;
    }
    const V factor = splat<V>(query_factor<C>(x_));
    for (i64 r = 0; r < rows_; ++r) {
      const S* from = static_cast<const S*>(x_.q.data) +
                      element_offset<C>(x_.q, b_, key_head_ * (x_.H / x_.Hk) + r / x_.L, r % x_.L);
      C* to = s_.q + r * s_.padded_d;
      copy_chunks(from, x_.d, to);
      for (i64 e = 0; e < s_.padded_d; e += W) store(to + e, load(to + e) * factor);
    }
  }

  // Adds keys from … to − 1 of the tile that begins at key0.
  void add_tile(i64 key0, i64 from, i64 to) {
    RowsInMemory<S> k = rows_in_memory(x_.k, key0, x_.d), v = rows_in_memory(x_.v, key0, x_.dv);
    if (values_are_keys(x_)) v.ahead = 0;  // they are there already
    if (!copies<C>(x_)) return add_keys(k, v, key0, from, to, x_.d, x_.dv);
    const RowsInMemory<C> own_k{s_.k, s_.padded_d, 0},
        own_v = values_are_keys(x_) ? own_k : RowsInMemory<C>{s_.v, s_.padded_dv, 0};
    for (i64 j = from; j < to; ++j) copy_chunks(k.at(j), x_.d, s_.k + j * s_.padded_d);
    for (i64 j = from; j < to && !values_are_keys(x_); ++j)
      copy_chunks(v.at(j), x_.dv, s_.v + j * s_.padded_dv);
    add_keys(own_k, own_v, key0, from, to, s_.padded_d, s_.padded_dv);
  }
  RowsInMemory<S> rows_in_memory(const AttentionCall::Operand& a, i64 row, i64 size) const {
    const i64 rows = rows_ < rows_to_fetch_for ? 0 : (ahead_bytes - 1) / (size * i64{sizeof(S)}) + 1;
    return {static_cast<const S*>(a.data) + element_offset<C>(a, b_, key_head_, row), a.row, rows * a.row};
  }
  static void copy_chunks(const S* from, i64 size, C* to) {
    each_chunk(from, size, [&](i64 e, const V* v) {
      for (int c = 0; c < Chunk<S>::vectors; ++c) store(to + e + c * W, v[c]);
    });
  }

  template <class E>
  void add_keys(const RowsInMemory<E>& k, const RowsInMemory<E>& v, i64 key0, i64 from, i64 to, i64 d,
                i64 dv) {
    for (i64 key = from / W * W; key < to; key += W)
      each_block<C>(rows_, [&](auto block, i64 r) {
        score_rows<block>(s_.q + r * s_.padded_d, s_.padded_d, k, key, smaller(to, key + W), d,
                          s_.a + r * tile_, tile_);
      });
    const i64 first = from / W * W, last = round_up(to, W);  // whole vectors of scores
    for (i64 r = 0; r < rows_; ++r) {
      C* a = s_.a + r * tile_;
      if (x_.softcap != 0)
        cap_scores(last - first, static_cast<C>(x_.softcap * log2_e), a + first, static_cast<C*>(nullptr));
      const i64 low = s_.first[r % x_.L] - key0, high = s_.last[r % x_.L] - key0;
      if (low > first || high < last) mask_row(a, first, last, low, high);
      softmax_row(r, first, last);
    }
    for (i64 key = from; key < to; key += keys_together)
      add_values(rows_, s_.a, tile_, v, key, smaller(to, key + keys_together), dv, g_, s_.padded_dv);
  }

  // a[first … last − 1] = −∞ outside low … high − 1.
  static void mask_row(C* a, i64 first, i64 last, i64 low, i64 high) {
    const V none = splat<V>(static_cast<C>(-__builtin_inf()));
    const V from = splat<V>(static_cast<C>(larger(first, smaller(low, last)))),
            to = splat<V>(static_cast<C>(larger(first, smaller(high, last))));
    C lane[W];
    for (int l = 0; l < W; ++l) lane[l] = static_cast<C>(l);
    for (i64 j = first; j < last; j += W) {
      const V key = load(lane) + static_cast<C>(j);
      store(a + j, select((key >= from) & (key < to), load(a + j), none));
    }
  }

  // Of scores first … last − 1: c' = max(c, A.max), π = exp(c − c')·π + exp(A − c').sum, G = exp(c − c')·G, A
  // = exp(A − c').
  void softmax_row(i64 r, i64 first, i64 last) {
    const C none = static_cast<C>(-__builtin_inf());
    C* a = s_.a + r * tile_;
    V m = load(a + first);
    for (i64 j = first + W; j < last; j += W) m = max(m, load(a + j));
    const C before = top_[r], most = reduce_max(m), now = most > before ? most : before;
    const V base = splat<V>(now == none ? C{0} : now);  // all −∞: exp(−∞ − 0) = 0, not NaN
    V sum = load(s_.sum + r * W);
    if (now != before) {
      const V factor = exp2_of_score(splat<V>(before) - base);
      sum *= factor;
      C* g = g_ + r * s_.padded_dv;
      for (i64 e = 0; e < s_.padded_dv; e += W) store(g + e, load(g + e) * factor);
      top_[r] = now;
    }
    for (i64 j = first; j < last; j += W) {
      const V p = exp2_of_score(load(a + j) - base);
      store(a + j, p);
      sum += p;
    }
    store(s_.sum + r * W, sum);
  }

  const AttentionCall& x_;
  const Scratch<C>& s_;
  const i64 b_, key_head_, rows_;
  const i64 tile_ = Cut(x_).tile;
  C *g_, *top_, *sum_;  // of this part
};

// O and ξ of query i of head h, from the parts of its key head. A sink is a first part whose value is 0.
template <class S, class C>
void merge_row(const AttentionCall& x, const Scratch<C>& s, const Partials<C>& all, i64 b, i64 h, i64 i) {
  using V = vector_t<C>;
  constexpr int W = Tile<C>::width;
  const C none = static_cast<C>(-__builtin_inf());
  const i64 group = x.H / x.Hk, parts = (s.start[b + 1] - s.start[b]) / x.Hk,
            first = (s.start[b] + h / group * parts) * all.rows + h % group * x.L + i;
  const C sink = x.sink ? static_cast<C>(static_cast<const S*>(x.sink)[h]) * static_cast<C>(log2_e) : none;
  C top = sink;
  for (i64 p = 0; p < parts; ++p) top = larger(top, all.top[first + p * all.rows]);
  const C base = top == none ? C{0} : top;
  const auto factor = [&](C c) { return c == top ? C{1} : exp2_of_score(splat<V>(c - base))[0]; };
  C sum = sink == none ? C{0} : factor(sink);
  for (i64 p = 0; p < parts; ++p) {
    s.factor[p] = factor(all.top[first + p * all.rows]);
    sum += s.factor[p] * all.sum[first + p * all.rows];
  }
  const V inverse = splat<V>(sum == 0 ? C{0} : 1 / sum);
  S* o = static_cast<S*>(x.o.data) + element_offset<C>(x.o, b, h, i);
  constexpr int vectors = Chunk<S>::vectors, unit = Chunk<S>::size;
  for (i64 e = 0; e < x.dv; e += unit) {
    V value[vectors] = {};
    for (i64 p = 0; p < parts; ++p) {
      const V weight = splat<V>(s.factor[p]);
      const C* g = all.g + (first + p * all.rows) * all.padded + e;
      for (int c = 0; c < vectors; ++c) value[c] = fma(weight, load(g + c * W), value[c]);
    }
    for (int c = 0; c < vectors; ++c) value[c] *= inverse;
    if (x.dv - e >= unit) {
      store_chunk(o + e, value);
    } else {
      store_part_of_chunk(o + e, x.dv - e, value);
    }
  }
  static_cast<C*>(x.lse)[(b * x.H + h) * x.L + i] =
      sum > 0    ? top * static_cast<C>(ln_2) + static_cast<C>(::log(static_cast<double>(sum)))
      : sum == 0 ? none
                 : sum /* NaN */;
}

template <class C>
void run(const AttentionCall& x, Worker& w) {
  Carver own{w.scratch}, shared{w.shared};
  Scratch<C> s(own, x);
  const Partials<C> all(shared, x);
  s.start[0] = 0;
  for (i64 b = 0; b < x.B; ++b) s.start[b + 1] = s.start[b] + Seen(x, b).ranges * x.Hk;
  with_storage<C>(x.type, [&](auto* tag) {
    using S = std::remove_cv_t<std::remove_pointer_t<decltype(tag)>>;
    w.each(s.start[x.B], [&](i64 part) {
      i64 b = 0, end = x.B;  // the batch entry of the part
      while (end - b > 1) (s.start[(b + end) / 2] <= part ? b : end) = (b + end) / 2;
      const Seen seen(x, b);
      const i64 range = Cut(x).range, place = part - s.start[b],
                key0 = (seen.first + place % seen.ranges) * range;
      Range<S, C>(x, s, all, part, b, place / seen.ranges)
          .run(larger(seen.from, key0), smaller(seen.to, key0 + range));
    });
    w.barrier();
    w.each(query_heads(x) * x.L,
           [&](i64 row) { merge_row<S>(x, s, all, row / (x.H * i64{x.L}), row / x.L % x.H, row % x.L); });
  });
}

template <class C>
ScratchSize scratch(const AttentionCall& x) {
  Carver own{nullptr}, shared{nullptr};
  Scratch<C>(own, x);
  Partials<C>(shared, x);
  return {own.used, shared.used};
}

}  // namespace

bool is_decoding(const AttentionCall& x) {
  return x.B > 0 && x.H > 0 && x.L > 0 && x.L <= most_queries && rows_of(x) <= most_rows && !x.bias.data &&
         x.dropout == 0 && !x.cu_q;
}

ScratchSize attention_decode_scratch(const AttentionCall& x) {
  return x.type == DType::f64 ? scratch<double>(x) : scratch<float>(x);
}

void attention_decode(const AttentionCall& x, Worker& worker) {
  x.type == DType::f64 ? run<double>(x, worker) : run<float>(x, worker);
}

void attention_decode_choice(const AttentionCall& x, char* text, std::size_t size) {
  const Cut cut(x);
  std::snprintf(
      text, size, "few queries: ranges of %lld keys in tiles of %lld, read once for %lld rows, %s%s",
      static_cast<long long>(cut.range), static_cast<long long>(cut.tile), static_cast<long long>(rows_of(x)),
      x.type != DType::f64 && copies<float>(x) ? "converted" : "in place",
      values_are_keys(x) ? ", values are keys" : "");
}

}  // namespace tg::cpu::TG_ISA
