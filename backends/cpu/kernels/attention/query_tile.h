// The query tile of attention: some queries of heads that share a key head, and the keys that they attend to.
#pragma once

#include "backends/cpu/kernels/attention/attention.h"
#include "backends/cpu/kernels/attention/tile_products.h"

namespace tg::cpu::TG_ISA {

// Divides a thread's scratch into 64-byte aligned pieces. If the base is null, only computes the size.
struct Carver {
  std::byte* base;
  std::size_t used = 0;
  template <class E>
  E* take(i64 count) {
    std::byte* p = base ? base + used : nullptr;
    used += (static_cast<std::size_t>(count) * sizeof(E) + 63) / 64 * 64;
    return reinterpret_cast<E*>(p);
  }
};

inline i64 query_heads(const AttentionCall& x) {
  return i64{x.B} * x.H;
}
inline i64 key_heads(const AttentionCall& x) {
  return i64{x.B} * x.Hk;
}

// Queries i0 … i1-1 of heads h0 … h1-1, which share a key head. Each query is a column of the score tile.
// Here and below, C is the compute type and S the storage type.
template <class C>
struct QueryTile {
  i64 b, h0, h1, i0, i1;
  i64 count = 0, width = 0;          // columns in use; the row length of tiles
  i64 from = 0, to = 0;              // keys that at least one column attends to
  i64 all_from = 0, all_to = 0;      // keys that every column attends to (empty: from > to)
  std::int32_t *first, *last;        // [width]: keys of each column
  std::int32_t *query, *batch_head;  // [width]: i, and b·H + h

  void carve(Carver& carver, i64 columns) {
    first = carver.take<std::int32_t>(columns), last = carver.take<std::int32_t>(columns);
    query = carver.take<std::int32_t>(columns), batch_head = carver.take<std::int32_t>(columns);
  }

  void set(const AttentionCall& x, i64 batch, i64 head0, i64 head1, i64 query0, i64 query1) {
    b = batch, h0 = head0, h1 = head1, i0 = query0, i1 = query1;
    count = (h1 - h0) * (i1 - i0);
    width = round_up(count, Tile<C>::width);
    from = x.T, to = 0, all_from = 0, all_to = x.T;
    for (i64 i = i0, c = 0; i < i1; ++i, ++c) {
      const KeyRange r = keys_visible_to(x, static_cast<int>(b), static_cast<int>(i));
      if (r.from < r.to) {
        from = r.from < from ? r.from : from;
        to = r.to > to ? r.to : to;
      }
      all_from = r.from > all_from ? r.from : all_from;
      all_to = r.to < all_to ? r.to : all_to;
      for (i64 h = h0; h < h1; ++h) {
        const i64 column = (h - h0) * (i1 - i0) + c;
        first[column] = r.from, last[column] = r.to;
        query[column] = static_cast<std::int32_t>(i),
        batch_head[column] = static_cast<std::int32_t>(b * x.H + h);
      }
    }
    for (i64 c = count; c < width; ++c) first[c] = 0, last[c] = INT32_MAX, query[c] = 0, batch_head[c] = 0;
    if (from >= to) from = to = 0;
  }
};

}  // namespace tg::cpu::TG_ISA
