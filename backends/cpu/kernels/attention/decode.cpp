// FlashForward2 [Stratos, FlashAttention §D] for batch-invariant results, and for few queries and many keys,
// as in decoding. A row is a query of any head that shares a key head. Rows are divided into groups, and keys
// into ranges. A group reads each range once. For each row it computes c, π = Σ exp(A − c) and G = Σ exp(A −
// c)·V over the keys of the range. The results of a row's ranges are combined in order:
//   c' = max(c, cᵣ),  π ← exp(c − c')·π + exp(cᵣ − c')·πᵣ,  G ← exp(c − c')·G + exp(cᵣ − c')·Gᵣ,
// and finally O = G ⊘ π,  ξ = c + log π. Ranges and tiles begin at fixed keys, even if a query does not
// attend to these keys. A row adds only the keys that it attends to. Other rows, the location of keys in
// memory and the number of threads therefore do not change the result.
#include "backends/cpu/kernels/attention/attention.h"

#include <cstdio>

#include "backends/cpu/kernels/attention/few_rows.h"
#include "backends/cpu/kernels/attention/score_tile.h"

namespace tg::cpu::TG_ISA {
namespace {

constexpr i64 most_rows = 64;   // rows of a group
constexpr i64 few_queries = 8;  // maximum for which threads share a group's keys
// With four rows or more, each cache line causes a burst of FMAs, and registers are filled from several keys
// at a time. The hardware prefetcher does not detect this access pattern, so the code prefetches lines this
// far ahead. With fewer rows, the hardware prefetcher works. It is then better than explicit prefetches,
// unless keys are stored in pages.
constexpr i64 ahead_bytes = 8192, rows_to_fetch_for = 4;
// A call that reads at most this number of bytes prefetches nothing.
constexpr i64 near_bytes = 2 << 20;

// How keys are split into ranges and tiles. The sizes depend only on d. A range has rows·dv results, which
// are written and read again. If keys are also values, the keys of a tile stay in the L2 cache until the
// kernel has read them as values.
struct Cut {
  explicit Cut(const AttentionCall& x)
      : range(x.d <= 64 ? piece_size(512, 128) : piece_size(256, 128)),
        tile(x.d <= 128   ? 128
             : x.d <= 256 ? 64
                          : 32) {}
  i64 range, tile;
};
// The values of this number of keys are added to a few rows, then to the next few rows. The values are then
// still in a cache.
constexpr i64 keys_together = 16, few_rows = 4;

// With heads = heads_of_key(), row r of a key head is query r / heads of the key head's query head r % heads.
// The rows of a group therefore attend to similar keys.
i64 heads_of_key(const AttentionCall& x) {
  return x.H / x.Hk;
}
i64 rows_of(const AttentionCall& x) {
  return heads_of_key(x) * x.L;
}
i64 rows_of_group(const AttentionCall& x) {
  return at_most(rows_of(x), most_rows);
}
i64 groups_of(const AttentionCall& x) {  // of a key head
  return ceil_div(rows_of(x), most_rows);
}
i64 ranges_of(const AttentionCall& x) {
  return ceil_div(x.T, Cut(x).range);
}

// Whether several threads share the keys of a group. This is true if there are few queries and possibly
// several ranges. With many queries, there are enough groups for all threads, and the results of ranges would
// need much memory.
bool shares_keys(const AttentionCall& x) {
  return x.L <= few_queries && ranges_of(x) > 1;
}

// Whether keys and values of a narrower type are converted only once, because several blocks of query rows
// read them.
template <class C>
bool copies(const AttentionCall& x) {
  return size_of(x.type) != sizeof(C) && rows_of_group(x) > 8;
}

template <class C>
i64 chunk_of(const AttentionCall& x) {
  i64 size = 0;
  with_storage<C>(x.type, [&]<class S>(const S*) { size = Chunk<S>::size; });
  return size;
}

// c, π and G of some rows. Rows of G are padded to whole chunks.
template <class C>
struct Sums {
  C *g, *top, *sum;
  i64 padded;
  Sums(Carver& carver, const AttentionCall& x, i64 rows) : padded(round_up(x.dv, chunk_of<C>(x))) {
    g = carver.take<C>(rows * padded);
    top = carver.take<C>(rows), sum = carver.take<C>(rows);
  }
  TG_INLINE Sums from_row(i64 r) const {
    Sums s = *this;
    s.g += r * padded, s.top += r, s.sum += r;
    return s;
  }
};

// The offsets of keys, starting at key0. They are in elements, relative to the data of a head, so all heads
// of a sequence can use them.
struct Places {
  i64* at;
  i64 batch = -1, key0 = 0, count = 0;
};

template <class C>
struct Workspace {
  Workspace(Carver& carver, const AttentionCall& x)
      : range(carver, x, shares_keys(x) ? 0 : rows_of_group(x)),
        all(carver, x, shares_keys(x) ? 1 : rows_of_group(x)) {
    constexpr int W = Tile<C>::width;
    const i64 rows = rows_of_group(x), tile = Cut(x).tile;
    padded_d = round_up(x.d, chunk_of<C>(x));
    start = carver.take<i64>(x.B + 1);
    first = carver.take<i64>(rows), last = carver.take<i64>(rows);
    q = carver.take<C>(rows * padded_d);
    a = carver.take<C>(rows * tile);
    sum = carver.take<C>(rows * W);
    expression.carve(carver, x, 1, tile, 0);
    k_at.at = carver.take<i64>(2 * tile), v_at.at = carver.take<i64>(2 * tile);
    if (!copies<C>(x)) return;
    own_k_at = carver.take<i64>(tile), own_v_at = carver.take<i64>(tile);
    k = carver.take<C>(tile * padded_d), v = carver.take<C>(tile * all.padded);
  }
  i64 padded_d;
  Sums<C> range, all;  // results of one range; results of all ranges so far
  i64* start;          // [B + 1]: the first part of each batch entry
  i64 *first, *last;   // [rows]: keys that each row attends to
  C* q;                // [rows × padded_d], scaled
  C* a;                // [rows × tile]: scores, then exp(A − c)
  C* sum;              // [rows × W]: π, lane by lane
  ExpressionTile<C> expression;
  Places k_at, v_at;         // [2·tile]: for the keys of this tile and the next one
  i64 *own_k_at, *own_v_at;  // [tile]: offsets of the copies
  C *k, *v;                  // [tile × padded]: copies
};

// The keys that at least one of the queries `first` to `last` of a batch entry attends to, and the ranges
// that contain these keys.
struct Seen {
  Seen(const AttentionCall& x, i64 b, i64 first_query, i64 last_query) {
    const KeyRange keys = Band(x, sequence_of_query(x, static_cast<int>(b), 0))
                              .some_of(static_cast<int>(first_query), static_cast<int>(last_query));
    from = keys.from, to = keys.to;
    const i64 range = Cut(x).range;
    first = from / range;
    ranges = from < to ? ceil_div(to, range) - first : 0;
  }
  i64 from, to, first, ranges;
};

struct Group {
  Group(const AttentionCall& x, i64 batch, i64 head, i64 nth)
      : b(batch),
        key_head(head),
        row0(nth * most_rows),
        rows(at_most(most_rows, rows_of(x) - row0)),
        heads(heads_of_key(x)),
        seen(x, b, query(0), query(rows - 1)) {}
  i64 query(i64 r) const { return (row0 + r) / heads; }
  i64 head(i64 r) const { return key_head * heads + (row0 + r) % heads; }

  i64 b, key_head, row0, rows, heads;
  Seen seen;
};

template <class S, class C>
class Rows {
 public:
  Rows(const AttentionCall& x, Workspace<C>& s, const Group& group) : x_(x), s_(s), group_(group) {
    load_queries();
  }

  // Computes c, π and G of the keys of a range. For rows that attend to no key of the range, the results are
  // undefined.
  void run(i64 range, const Sums<C>& to) {
    const i64 size = Cut(x_).range, first = at_least(group_.seen.from, range * size),
              end = at_most(group_.seen.to, (range + 1) * size);
    out_ = to;
    for (i64 r = 0; r < rows_; ++r) to.top[r] = static_cast<C>(-__builtin_inf());
    for (i64 e = 0; e < rows_ * W; e += W) store(s_.sum + e, V{});
    for (i64 e = 0; e < rows_ * to.padded; e += W) store(to.g + e, V{});
    for (i64 key0 = first / tile_ * tile_; key0 < end; key0 += tile_)
      add_tile(key0, at_least(first, key0) - key0, at_most(end, key0 + tile_) - key0);
    for (i64 r = 0; r < rows_; ++r) to.sum[r] = reduce_add(load(s_.sum + r * W));
  }
  bool sees(i64 r, i64 range) const {
    const i64 size = Cut(x_).range;
    return s_.first[r] < (range + 1) * size && s_.last[r] > range * size;
  }

 private:
  using V = vector_t<C>;
  static constexpr int W = Tile<C>::width, most_at_once = W < 8 ? W : 8;

  void load_queries() {
    const V factor = splat<V>(unit_.of_q);
    every_ = {0, x_.T};
    for (i64 r = 0; r < rows_; ++r) {
      const i64 i = group_.query(r);
      const KeyRange keys = keys_visible_to(x_, static_cast<int>(group_.b), static_cast<int>(i));
      s_.first[r] = keys.from, s_.last[r] = keys.to;
      every_ = {at_least(every_.from, keys.from), at_most(every_.to, keys.to)};
      const S* from = static_cast<const S*>(x_.q.data) + element_offset<C>(x_.q, group_.b, group_.head(r), i);
      C* to = s_.q + r * s_.padded_d;
      copy_chunks(from, x_.d, to);
      for (i64 e = 0; e < s_.padded_d; e += W) store(to + e, load(to + e) * factor);
    }
  }

  // Adds keys from … to − 1 of the tile that begins at key0.
  void add_tile(i64 key0, i64 from, i64 to) {
    const bool one = values_are_keys(x_);
    const RowsInMemory<S> k = rows_in_memory(x_.k, key0, to, x_.d, s_.k_at);
    RowsInMemory<S> v = k;
    if (!one) v = rows_in_memory(x_.v, key0, to, x_.dv, s_.v_at);
    if (one) v.ahead = v.skip = 0;  // they have been fetched already
    if (!copies<C>(x_)) {
      if (!near_) return add_keys(k, v, key0, from, to, x_.d, x_.dv);
      return add_keys(RowsInCache<S>{k.data, k.place}, RowsInCache<S>{v.data, v.place}, key0, from, to, x_.d,
                      x_.dv);
    }
    for (i64 j = from / W * W; j < to; ++j) {  // whole vectors of scores
      copy_chunks(k.at(j), x_.d, s_.k + (s_.own_k_at[j] = j * s_.padded_d));
      if (!one) copy_chunks(v.at(j), x_.dv, s_.v + (s_.own_v_at[j] = j * s_.all.padded));
    }
    const RowsInCache<C> own_k{s_.k, s_.own_k_at}, own_v{s_.v, s_.own_v_at};
    add_keys(own_k, one ? own_k : own_v, key0, from, to, s_.padded_d, s_.all.padded);
  }
  // Returns `count` rows of a tile, starting at key0, and the rows to prefetch. The last tile prefetches rows
  // of the next head.
  RowsInMemory<S> rows_in_memory(const AttentionCall::TensorView& a, i64 key0, i64 count, i64 size,
                                 Places& places) const {
    const i64 fetched = size == 0 ? 0 : (ahead_bytes - 1) / (size * i64{sizeof(S)}) + 1;
    const bool last = key0 + tile_ >= group_.seen.to,
               fetches = !last && (x_.table || rows_ >= rows_to_fetch_for);
    const i64 ahead = fetches ? at_most(tile_, fetched) : 0;
    if (places.batch != group_.b || places.key0 != key0 || places.count != count + ahead) {
      places.batch = group_.b, places.key0 = key0, places.count = count + ahead;
      find_rows(a, key0, count + ahead, places.at);
    }
    return {static_cast<const S*>(a.data) + group_.key_head * a.head, places.at, ahead,
            !last || group_.key_head + 1 == x_.Hk ? 0 : a.head};
  }
  // Computes the offsets of keys key0 … key0 + count − 1. Keys after the last one get the offset of the last
  // key.
  void find_rows(const AttentionCall::TensorView& a, i64 key0, i64 count, i64* at) const {
    const i64 page = x_.table ? x_.page : x_.T, end = at_most(group_.seen.to, key0 + count);
    for (i64 key = key0; key < end;) {
      const i64 nth = key / page, stop = at_most(end, (nth + 1) * page),
                batch = x_.table ? x_.table[group_.b * x_.pages + nth] : group_.b;
      i64 place = element_offset<C>(a, batch, 0, key - nth * page);
      for (; key < stop; ++key, place += a.row) *at++ = place;
    }
    for (i64 key = end; key < key0 + count; ++key, ++at) *at = at[-1];
  }
  static void copy_chunks(const S* from, i64 size, C* to) {
    each_chunk(from, size, [&](i64 e, const V* v) {
      for (int c = 0; c < Chunk<S>::vectors; ++c) store(to + e + c * W, v[c]);
    });
  }

  // Not inlined, because two instances in one function would share its registers.
  template <class R>
  [[gnu::noinline]] void add_keys(const R& k, const R& v, i64 key0, i64 from, i64 to, i64 d, i64 dv) {
    for (i64 key = from / W * W; key < to; key += W)
      each_block<most_at_once>(rows_, [&](auto block, i64 r) {
        score_rows<block>(s_.q + r * s_.padded_d, s_.padded_d, k, key, at_most(to, key + W), d,
                          s_.a + r * tile_, tile_);
      });
    const i64 first = from / W * W, last = round_up(to, W);  // whole vectors of scores
    for (i64 r = 0; r < rows_; ++r) {
      const i64 low = s_.first[r] - key0, high = s_.last[r] - key0;
      if (low >= to || high <= from) continue;
      C* a = s_.a + r * tile_;
      if (x_.softcap != 0)
        cap_scores(last - first, static_cast<C>(x_.softcap), a + first, static_cast<C*>(nullptr));
      if (x_.plan)
        ExpressionRun<C>(x_, s_.expression, group_.b, group_.head(r), group_.query(r), key0 + first,
                         last - first, s_.first[r], s_.last[r])
            .apply(a + first, nullptr, false);
      if (low > first || high < last) mask_row(a, first, last, low, high);
      softmax_row(r, first, last);
    }
    const i64 together = rows_ <= few_rows ? to - from : keys_together;
    for (i64 key = from; key < to; key += together) {
      const i64 end = at_most(to, key + together);
      if (every_.from <= key0 + key && key0 + end <= every_.to)
        add_values(rows_, s_.a, tile_, v, key, end, dv, out_.g, out_.padded);
      else
        add_seen_values(v, key0, key, end, dv);
    }
  }

  // Adds values to rows that attend to different keys. Rows with the same keys are processed together.
  template <class R>
  void add_seen_values(const R& v, i64 key0, i64 from, i64 to, i64 dv) {
    const auto low = [&](i64 r) { return at_least(from, at_most(to, s_.first[r] - key0)); };
    const auto high = [&](i64 r) { return at_least(from, at_most(to, s_.last[r] - key0)); };
    for (i64 r = 0, next; r < rows_; r = next) {
      for (next = r + 1; next < rows_ && low(next) == low(r) && high(next) == high(r);) ++next;
      if (low(r) < high(r))
        add_values(next - r, s_.a + r * tile_, tile_, v, low(r), high(r), dv, out_.g + r * out_.padded,
                   out_.padded);
    }
  }

  // a[first … last − 1] = −∞ outside of low … high − 1.
  static void mask_row(C* a, i64 first, i64 last, i64 low, i64 high) {
    const V none = splat<V>(static_cast<C>(-__builtin_inf()));
    const V from = splat<V>(static_cast<C>(at_least(first, at_most(low, last)))),
            to = splat<V>(static_cast<C>(at_least(first, at_most(high, last))));
    C lane[W];
    for (int l = 0; l < W; ++l) lane[l] = static_cast<C>(l);
    for (i64 j = first; j < last; j += W) {
      const V key = load(lane) + static_cast<C>(j);
      store(a + j, select((key >= from) & (key < to), load(a + j), none));
    }
  }

  // For scores first … last − 1: c' = max(c, A.max), π = exp(c − c')·π + exp(A − c').sum, G = exp(c − c')·G,
  // A = exp(A − c').
  void softmax_row(i64 r, i64 first, i64 last) {
    C* a = s_.a + r * tile_;
    V m = load(a + first);
    for (i64 j = first + W; j < last; j += W) m = max(m, load(a + j));
    const C before = out_.top[r], most = reduce_max(m), now = most > before ? most : before;
    const ExponentBase<C> base = exponent_base<C>(now, unit_.exponent);
    const V f = splat<V>(unit_.exponent), offset = splat<V>(-base.offset);
    if (base.shift != 0)
      for (i64 j = first; j < last; j += W) store(a + j, load(a + j) - splat<V>(base.shift));
    V sum = load(s_.sum + r * W);
    if (now != before) {
      const V factor = shrinkage<C>(splat<V>(before), splat<V>(now), unit_.exponent);
      sum *= factor;
      C* g = out_.g + r * out_.padded;
      for (i64 e = 0; e < out_.padded; e += W) store(g + e, load(g + e) * factor);
      out_.top[r] = now;
    }
    for (i64 j = first; j < last; j += W) {
      const V p = exp2_of_score(fma(load(a + j), f, offset));
      store(a + j, p);
      sum += p;
    }
    store(s_.sum + r * W, sum);
  }

  const AttentionCall& x_;
  const ScoreUnit<C> unit_{x_};
  Workspace<C>& s_;
  const Group& group_;
  const i64 rows_ = group_.rows, tile_ = Cut(x_).tile;
  // Whether the keys and values are small enough to be in a cache.
  const bool near_ =
      x_.B * x_.Hk * (group_.seen.to - group_.seen.from) * (x_.d + x_.dv) * static_cast<i64>(sizeof(S)) <=
      near_bytes;
  struct {
    i64 from, to;
  } every_;  // keys that all rows attend to
  Sums<C> out_ = s_.range;
};

// Initializes a row before its first range. A sink has the effect of an additional first key with the value
// 0.
template <class S, class C>
void start_row(const AttentionCall& x, i64 h, const Sums<C>& all) {
  const C none = static_cast<C>(-__builtin_inf());
  *all.top = x.sink ? ScoreUnit<C>(x).of(static_cast<C>(static_cast<const S*>(x.sink)[h])) : none;
  *all.sum = *all.top == none ? C{0} : C{1};
  for (i64 e = 0; e < all.padded; e += Tile<C>::width) store(all.g + e, vector_t<C>{});
}

template <class C>
void add_range(const AttentionCall& x, const Sums<C>& all, const Sums<C>& range) {
  using V = vector_t<C>;
  constexpr int W = Tile<C>::width;
  const C none = static_cast<C>(-__builtin_inf());
  if (*all.top == none && *all.sum == 0) {  // the first range: bitwise identical to the computation below
    *all.top = *range.top, *all.sum = *range.sum;
    for (i64 e = 0; e < all.padded; e += W) store(all.g + e, load(range.g + e) + V{});
    return;
  }
  const C top = *all.top > *range.top ? *all.top : *range.top, exponent = ScoreUnit<C>(x).exponent;
  const auto factor = [&](C c) { return shrinkage<C>(splat<V>(c), splat<V>(top), exponent); };
  const V before = factor(*all.top), added = factor(*range.top);
  *all.sum = before[0] * *all.sum + added[0] * *range.sum;
  for (i64 e = 0; e < all.padded; e += W)
    store(all.g + e, fma(added, load(range.g + e), before * load(all.g + e)));
  *all.top = top;
}

// Computes O and ξ of query i of head h.
template <class S, class C>
void finish_row(const AttentionCall& x, i64 b, i64 h, i64 i, const Sums<C>& all) {
  using V = vector_t<C>;
  constexpr int W = Tile<C>::width, vectors = Chunk<S>::vectors, unit = Chunk<S>::size;
  const C sum = *all.sum;
  const V inverse = splat<V>(sum == 0 ? C{0} : 1 / sum);
  S* o = static_cast<S*>(x.o.data) + element_offset<C>(x.o, b, h, i);
  for (i64 e = 0; e < x.dv; e += unit) {
    V value[vectors];
    for (int c = 0; c < vectors; ++c) value[c] = load(all.g + e + c * W) * inverse;
    if (x.dv - e >= unit) {
      store_chunk(o + e, value);
    } else {
      store_part_of_chunk(o + e, x.dv - e, value);
    }
  }
  store_lse(x, (b * x.H + h) * x.L + i, SplitLse<C>(*all.top, sum, ScoreUnit<C>(x)));
}

// Each thread computes whole groups.
template <class S, class C>
void run_groups(const AttentionCall& x, Workspace<C>& s, Worker& w) {
  const i64 groups = groups_of(x);
  // The last groups of a head attend to the most keys. They are processed first, which balances the threads.
  w.each(key_heads(x) * groups, [&](i64 part) {
    const i64 key_head = part / groups;
    const Group group(x, key_head / x.Hk, key_head % x.Hk, groups - 1 - part % groups);
    Rows<S, C> rows(x, s, group);
    for (i64 r = 0; r < group.rows; ++r) start_row<S>(x, group.head(r), s.all.from_row(r));
    for (i64 n = group.seen.first; n < group.seen.first + group.seen.ranges; ++n) {
      rows.run(n, s.range);
      for (i64 r = 0; r < group.rows; ++r)
        if (rows.sees(r, n)) add_range(x, s.all.from_row(r), s.range.from_row(r));
    }
    for (i64 r = 0; r < group.rows; ++r)
      finish_row<S>(x, group.b, group.head(r), group.query(r), s.all.from_row(r));
  });
}

// Threads first share the ranges of all groups, and then the rows. A part is one range of one group. If a
// sequence has only one range, the part also finishes the rows.
template <class S, class C>
void run_ranges(const AttentionCall& x, Workspace<C>& s, const Sums<C>& parts, Worker& w) {
  const i64 groups = groups_of(x), heads = heads_of_key(x);
  s.start[0] = 0;
  for (i64 b = 0; b < x.B; ++b) s.start[b + 1] = s.start[b] + Seen(x, b, 0, x.L - 1).ranges * x.Hk * groups;
  w.each(s.start[x.B], [&](i64 part) {
    i64 b = 0, end = x.B;  // the batch entry of the part
    while (end - b > 1) (s.start[(b + end) / 2] <= part ? b : end) = (b + end) / 2;
    const Seen seen(x, b, 0, x.L - 1);
    const i64 place = part - s.start[b], of_all = place / seen.ranges;
    const Group group(x, b, of_all / groups, of_all % groups);
    const i64 range = seen.first + place % seen.ranges;
    const Sums<C> sums = parts.from_row(part * rows_of_group(x));
    Rows<S, C> rows(x, s, group);
    rows.run(range, sums);
    for (i64 r = 0; seen.ranges == 1 && r < group.rows; ++r) {
      start_row<S>(x, group.head(r), s.all);
      if (rows.sees(r, range)) add_range(x, s.all, sums.from_row(r));
      finish_row<S>(x, b, group.head(r), group.query(r), s.all);
    }
  });
  if (!w.barrier()) return;
  w.each(query_heads(x) * x.L, [&](i64 row) {
    const i64 b = row / (x.H * i64{x.L}), h = row / x.L % x.H, i = row % x.L;
    if (s.start[b + 1] - s.start[b] == x.Hk * groups) return;
    const Seen seen(x, b, 0, x.L - 1), own(x, b, i, i);
    const i64 r = i * heads + h % heads,
              part = s.start[b] + (h / heads * groups + r / most_rows) * seen.ranges - seen.first;
    start_row<S>(x, h, s.all);
    for (i64 n = own.first; n < own.first + own.ranges; ++n)
      add_range(x, s.all, parts.from_row((part + n) * rows_of_group(x) + r % most_rows));
    finish_row<S>(x, b, h, i, s.all);
  });
}

template <class C>
Sums<C> parts_of(Carver& carver, const AttentionCall& x) {
  return {carver, x, shares_keys(x) ? key_heads(x) * groups_of(x) * ranges_of(x) * rows_of_group(x) : 0};
}

template <class C>
void run(const AttentionCall& x, Worker& w) {
  if (is_empty(x)) return;
  Carver own{w.scratch}, shared{w.shared};
  Workspace<C> s(own, x);
  s.expression.worker = &w;
  const Sums<C> parts = parts_of<C>(shared, x);
  with_storage<C>(x.type, [&]<class S>(const S*) {
    shares_keys(x) ? run_ranges<S>(x, s, parts, w) : run_groups<S>(x, s, w);
  });
}

template <class C>
Scratch scratch(const AttentionCall& x) {
  if (is_empty(x)) return {};
  Carver own{nullptr}, shared{nullptr};
  Workspace<C>(own, x);
  parts_of<C>(shared, x);
  return {own.used, shared.used};
}

void describe(const AttentionCall& x, char* text, std::size_t size) {
  if (is_empty(x)) return;
  const Cut cut(x);
  std::snprintf(text, size, "%s queries: ranges of %lld keys in tiles of %lld, read once for %lld rows, %s%s",
                x.L <= few_queries ? "few" : "many", static_cast<long long>(cut.range),
                static_cast<long long>(cut.tile), static_cast<long long>(rows_of_group(x)),
                x.type != DType::f64 && copies<float>(x) ? "converted" : "in place",
                values_are_keys(x) ? ", values are keys" : "");
}

}  // namespace

bool is_decoding(const AttentionCall& x) {
  return !is_empty(x) && x.L <= few_queries && rows_of(x) <= most_rows && !x.bias.data && x.dropout == 0 &&
         !x.cu_q;
}

constinit const AttentionKernel attention_decode{
    [](const AttentionCall& x) { return x.type == DType::f64 ? scratch<double>(x) : scratch<float>(x); },
    [](const AttentionCall& x, Worker& w) { x.type == DType::f64 ? run<double>(x, w) : run<float>(x, w); },
    &describe};

}  // namespace tg::cpu::TG_ISA
