// Visible keys of each query, of any query and of all queries in a tile (keys_visible_to in
// ops/attention_call.h). This file also finds the query tiles that see given keys, and applies the mask.
#pragma once

#include <climits>

#include "backends/cuda/attention/workspace.h"
#include "backends/cuda/tile/accumulator.cuh"

namespace tg::cuda::attention {

using tile::Accumulator, tile::lane_id, tile::lane_row, tile::lane_column;

// The union of the intervals of a warp's lanes, one per lane; {0, 0} if all are empty.
__device__ inline KeyRange warp_union(KeyRange r) {
  const int from = __reduce_min_sync(~0u, r.from < r.to ? r.from : INT_MAX),
            to = __reduce_max_sync(~0u, r.to);
  return from < to ? KeyRange{from, to} : KeyRange{0, 0};
}

// Keys that at least one query of a tile sees, and keys that every query sees.
struct SeenByTile {
  KeyRange some, every;
};

// Visible keys of each of the block's queries, in shared memory.
template <int Queries>
struct VisibleKeys {
  int first[Queries], last[Queries];

  // Sets the keys of queries i0 …. Called by `threads` threads, by default by the whole block.
  __device__ void set(const AttentionCall& x, int b, int i0) { set(x, b, i0, threadIdx.x, blockDim.x); }
  __device__ void set(const AttentionCall& x, int b, int i0, int thread, int threads) {
    set_each([&](int n) { return keys_visible_to(x, b, i0 + n); }, thread, threads);
  }
  // Sets the keys if the x.L queries belong to several heads, with `each` queries per head. Called by one
  // warp.
  __device__ void set_of_heads(const AttentionCall& x, int b, int i0, int each) {
    AttentionCall one = x;
    one.L = each;
    set_each([&](int n) { return i0 + n < x.L ? keys_visible_to(one, b, (i0 + n) % each) : KeyRange{0, 0}; });
  }
  // Sets the keys for one sequence whose band is known. Rows are ordered by query and then by head of the
  // group, and start at row0. Rows beyond `rows` see no keys.
  __device__ void set_of_groups(const Band& band, int group, int row0, int rows) {
    set_each([&](int n) { return n < rows ? band.of((row0 + n) / group) : KeyRange{0, 0}; });
  }
  // Sets the keys for consecutive queries of one sequence, starting at row0.
  __device__ void set(const Band& band, int row0, int rows) {
    set_each<2>([&](int n) { return n < rows ? band.of(row0 + n) : KeyRange{0, 0}; });
  }
  // Hides all keys outside of `keys`. Called by one warp; each lane handles the queries that it has set.
  __device__ void keep(KeyRange keys) {
    set_each([&](int n) { return KeyRange{max(first[n], keys.from), min(last[n], keys.to)}; });
  }
  // The block calls set(), then unite() over its queries below x.L.
  __device__ SeenByTile set_and_unite(const AttentionCall& x, int b, int i0) {
    set(x, b, i0);
    __syncthreads();
    return unite(0, min(Queries, x.L - i0));
  }
  // The visible keys of queries [from, to). May be called by any warp after a barrier.
  __device__ SeenByTile unite(int from, int to) const {
    int low = INT_MAX, high = 0, most = 0, least = INT_MAX;
#pragma unroll 1
    for (int n = from + lane_id(); n < to; n += 32) {
      if (first[n] < last[n]) low = min(low, first[n]);
      high = max(high, last[n]);
      most = max(most, first[n]), least = min(least, last[n]);
    }
    low = __reduce_min_sync(~0u, low), high = __reduce_max_sync(~0u, high);
    return {low < high ? KeyRange{low, high} : KeyRange{0, 0},
            {__reduce_max_sync(~0u, most), __reduce_min_sync(~0u, least)}};
  }

 private:
  // Sets the keys of the nth query to keys(n). By default, one warp calls it.
  template <int unrolled = 1>
  __device__ __forceinline__ void set_each(auto&& keys, int thread = lane_id(), int threads = 32) {
#pragma unroll unrolled
    for (int n = thread; n < Queries; n += threads) {
      const KeyRange r = keys(n);
      first[n] = r.from, last[n] = r.to;
    }
  }
};

// Whether `keys` contains all of j0 … j0 + n − 1.
__device__ __forceinline__ bool covers(KeyRange keys, int j0, int n) {
  return !(j0 < keys.from || j0 + n > keys.to);
}

// The queries that belong to a sequence. Other rows may contain anything.
__device__ __forceinline__ KeyRange queries_of_sequences(const AttentionCall& x) {
  return x.cu_q ? KeyRange{max(x.cu_q[0], 0), min(x.cu_q[x.segments], x.L)} : KeyRange{0, x.L};
}

// Returns the first and the last query tile of a batch entry that see some of the keys [from, to). Also
// returns the keys that these tiles see. A tile has range_tile queries. May be called by any warp.
struct Meeting {
  int first, last;
  KeyRange keys;
};
__device__ __forceinline__ Meeting tiles_that_meet(const int2* keys_of_tiles, int tiles, int from, int to) {
  int first = INT_MAX / range_tile, last = 0;
  KeyRange keys{INT_MAX, 0};
#pragma unroll 1
  for (int n = lane_id(); n < tiles; n += 32) {
    const int2 r = keys_of_tiles[n];
    if (r.x < to && r.y > from)
      first = min(first, n), last = n + 1, keys = {min(keys.from, r.x), max(keys.to, r.y)};
  }
  return {__reduce_min_sync(~0u, first),
          __reduce_max_sync(~0u, last),
          {__reduce_min_sync(~0u, keys.from), __reduce_max_sync(~0u, keys.to)}};
}

// Sets x [queries, keys], or [keys, queries] if not by_query, to `value` if a query does not see the key. x
// starts at (row0, column0) of a tile whose first key is j0.
template <bool by_query = true>
__device__ __forceinline__ void mask(auto& x, const auto& seen, int row0, int column0, int j0,
                                     float value = -INFINITY) {
  const int row = row0 + lane_row(), column = column0 + lane_column(), key0 = j0 + (by_query ? column : row);
#pragma unroll
  for (int q = 0; q < (by_query ? x.rows : x.columns); ++q) {
    const int query = by_query ? row + x.row(q) : column + x.column(q);
    const int first = seen.first[query] - key0, last = seen.last[query] - key0;
#pragma unroll
    for (int k = 0; k < (by_query ? x.columns : x.rows); ++k) {
      const int key = by_query ? x.column(k) : x.row(k);
      float& e = by_query ? x(q, k) : x(k, q);
      e = key >= first && key < last ? e : value;
    }
  }
}

}  // namespace tg::cuda::attention
