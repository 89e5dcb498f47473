// Merges decoding results in a fixed order: first over the streams of a block, then over the ranges. The
// block that finishes the last range of a key head merges all ranges of this key head.
#pragma once

#include "backends/cuda/attention/decoding/decoding_items.cuh"
#include "backends/cuda/attention/decoding/decoding_shape.h"
#include "backends/cuda/attention/stages/softmax.cuh"
#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::attention::decoding {

// Operations on four columns of O or G.
__device__ __forceinline__ float4 scaled(const float4& a, float by) {
  return {a.x * by, a.y * by, a.z * by, a.w * by};
}
__device__ __forceinline__ float4 multiply_add(float w, const float4& a, const float4& to) {
  return {fmaf(w, a.x, to.x), fmaf(w, a.y, to.y), fmaf(w, a.z, to.z), fmaf(w, a.w, to.w)};
}

// Combines results over two sets of keys, whose largest scores are `before` and c. A score of −∞ means that
// the set has no keys, and the results of the other set do not change. All code that combines results uses
// these instructions, so results are bitwise identical.
struct Joined {
  float top, by, by_c;  // the larger score; factors of the results
  bool some;

  __device__ __forceinline__ Joined(float before, float c, float exponent)
      : top(fmaxf(before, c)),
        by(exp_of_difference(before, top, exponent)),
        by_c(exp_of_difference(c, top, exponent)),
        some(c != -INFINITY) {}
  __device__ __forceinline__ float of(float before, float more) const {
    return some ? fmaf(by_c, more, __fmul_rn(by, before)) : before;
  }
  __device__ __forceinline__ float4 of(const float4& before, const float4& more) const {
    return {of(before.x, more.x), of(before.y, more.y), of(before.z, more.z), of(before.w, more.w)};
  }
  // c and π.
  __device__ __forceinline__ float2 stats(float pi, float more) const { return {top, of(pi, more)}; }
};

// Four columns of results over several sets of keys, added in order: c, π and G so far.
struct MergedSets : SoftmaxState<OwnQuery> {
  float4 o{0, 0, 0, 0};

  MergedSets() = default;
  __device__ __forceinline__ MergedSets(float2 stats, const float4& g) : o(g) {
    top[0] = stats.x, sum[0] = stats.y;
  }
  __device__ __forceinline__ float2 stats() const { return {top[0], sum[0]}; }
  // Adds a set with the given c and π, and G.
  __device__ __forceinline__ void add(float2 of_set, const float4& g, float exponent) {
    const Joined all(top[0], of_set.x, exponent);
    top[0] = all.top, sum[0] = all.of(sum[0], of_set.y), o = all.of(o, g);
  }
  // Adds several sets together, each given by c, π and O.
  template <int N>
  __device__ __forceinline__ void add(const float2 (&of_set)[N], const float4 (&g)[N], float exponent) {
    float now = top[0];
#pragma unroll
    for (int n = 0; n < N; ++n) now = fmaxf(now, of_set[n].x);
    o = scaled(o, move(0, now, exponent));
#pragma unroll
    for (int n = 0; n < N; ++n) {
      // Rounded explicitly for every N: the compiler must not fuse the product with the addition.
      const float w = __fmul_rn(exp_of_difference(of_set[n].x, shown(now), exponent), of_set[n].y);
      sum[0] = __fadd_rn(sum[0], w);
      o = multiply_add(w, g[n], o);
    }
  }
  // Adds a key with score c and value 0.
  __device__ __forceinline__ void add_sink(float c, float exponent) {
    const float now = fmaxf(top[0], c);
    if (now == -INFINITY) return;
    const float by = exp_of_difference(top[0], now, exponent);
    top[0] = now, sum[0] = fmaf(sum[0], by, exp_of_difference(c, now, exponent)), o = scaled(o, by);
  }
  // Returns these results as one set with its O. A merge with sets of no keys would be bitwise identical.
  __device__ __forceinline__ MergedSets as_one(float exponent) const {
    const float2 own[1] = {stats()};
    const float4 g[1] = {finished()};
    MergedSets one;
    one.add(own, g, exponent);
    return one;
  }
  // O = G ⊘ π.
  __device__ __forceinline__ float4 finished() const {
    return scaled(o, sum[0] > 0 ? tile::reciprocal(sum[0]) : sum[0]);
  }
};

// Results of the ranges: O [tiles, Hk, ranges, rows, dv], and c and π [tiles, Hk, ranges, rows].
struct Partial {
  float* o;
  float2* of_row;
  int rows, dv;
  __device__ float* at(int row, int column) const { return o + i64(row) * dv + column; }
  // The results of the nth range after this one.
  __device__ Partial after(int nth) const {
    return {o + i64(nth) * rows * dv, of_row + i64(nth) * rows, rows, dv};
  }
};
__device__ inline Partial partial(const AttentionCall& x, const Workspace& work, const Tiles& tiles,
                                  const Item& item, int range) {
  return Partial{work.o, work.lse, tiles.rows, x.dv}.after((item.nth_tile * x.Hk + item.head) * work.parts +
                                                           range);
}

// Stores four elements of O.
__device__ __forceinline__ void store_four(float* to, const float4& o) {
  *reinterpret_cast<float4*>(to) = o;
}
template <class S>
__device__ __forceinline__ void store_four(S* to, const float4& o) {
  *reinterpret_cast<uint2*>(to) = {tile::pack(o.x, o.y, S()), tile::pack(o.z, o.w, S())};
}

// Stores O for four columns of a row. For column 0, also stores ξ. ξ of a row without visible keys is the
// sink, as in all kernels.
template <class S>
__device__ void put(const AttentionCall& x, const Item& item, int row_of_tile, int column, MergedSets all) {
  const int b = item.tile.b;
  const auto [head, i] = QueryPlace(x, item, row_of_tile);
  const Units units = units_of(x);
  const float sink = x.sink ? widen(static_cast<const S*>(x.sink)[head]) : -INFINITY;
  const bool sees_keys = all.sum[0] > 0;
  if (x.sink && sees_keys) all.add_sink(units.of(sink), units.exponent);
  store_four(x.o.at<S>(b, head) + i * x.o.row + column, all.finished());
  if (column > 0) return;
  const LseRows lse = lse_of_call(x, (i64(b) * x.H + head) * x.L);
  if (sees_keys)
    lse.put(i, split_lse({all.top[0], 0}, logf(all.sum[0]), units.natural));
  else
    lse.put(i, {sink, 0});
}

// A stream's results for the rows of a tile, in shared memory: c and π of each row, and G.
template <class At>
struct StreamResults {
  float2* tops;  // [rows]
  float* sums;   // [rows, At::row]
  int rows;

  __device__ __forceinline__ StreamResults(unsigned char* memory, int stream, int rows)
      : tops(reinterpret_cast<float2*>(memory + At::tops) + stream * rows),
        sums(reinterpret_cast<float*>(memory + At::sums(rows)) + stream * rows * At::row),
        rows(rows) {}
  // Four columns of a row.
  __device__ __forceinline__ MergedSets at(int row, int column) const {
    return {tops[row], *reinterpret_cast<const float4*>(sums + row * At::row + column)};
  }
};

// Stores c, π and G of a stream, [values, queries], for tensor cores.
template <int Rows>
using ColumnSoftmax = SoftmaxState<QueriesAsColumns<Rows>>;
template <class At>
__device__ __forceinline__ void store_results(const StreamResults<At>& to,
                                              const ColumnSoftmax<At::rows>& softmax,
                                              Accumulator<At::D, At::rows>& o) {
#pragma unroll
  for (int c = 0; c < o.columns; ++c) {
    const int query = tile::lane_column() + o.column(c);
    const float sum = softmax.all(c);
    if (query >= to.rows) continue;
    if (tile::lane_row() == 0) to.tops[query] = {softmax.top[c], sum};
#pragma unroll
    for (int r = 0; r < o.rows; ++r) to.sums[query * At::row + tile::lane_row() + o.row(r)] = o(r, c);
  }
}

// Initializes the results of a short tile. The slices are then added to these results, and put_short() stores
// them to the outputs.
template <class At>
__device__ __forceinline__ void begin_short(const StreamResults<At>& to) {
#pragma unroll 1
  for (int n = tile::lane_id(); n < to.rows; n += 32) to.tops[n] = {-INFINITY, 0};
#pragma unroll 1
  for (int n = tile::lane_id(); n < to.rows * At::row; n += 32) to.sums[n] = 0;
  __syncwarp();
}
template <class S, class At>
__device__ __forceinline__ void put_short(const AttentionCall& x, const Item& item,
                                          const StreamResults<At>& from) {
  constexpr int quads = At::D / 4;
  __syncwarp();
#pragma unroll 1
  for (int i = tile::lane_id(); i < item.tile.rows * quads; i += 32)
    if (const int row = i / quads, column = i % quads * 4; column < x.dv)
      put<S>(x, item, row, column, from.at(row, column).as_one(units_of(x).exponent));
  __syncwarp();
}

// Merges four columns of a row over the block's streams.
template <class At>
__device__ __forceinline__ MergedSets merge_streams(unsigned char* memory, int rows, int row, int column,
                                                    float exponent) {
  MergedSets all;
#pragma unroll
  for (int n = 0; n < At::streams; ++n) {
    const MergedSets own = StreamResults<At>(memory, n, rows).at(row, column);
    all.add(own.stats(), own.o, exponent);
  }
  return all;
}

// Merges four columns of a row over ranges `first` … `end` − 1. Other blocks may have computed the ranges, so
// reads bypass the L1 cache. Ranges are added in aligned groups of `together`. Ranges that a row does not see
// therefore do not change its result.
template <int together = 16>
__device__ __forceinline__ MergedSets merge_ranges(const Partial& range_0, int first, int end, int row,
                                                   int column, float exponent) {
  MergedSets all;
#pragma unroll 1
  for (int n0 = first / together * together; n0 < end; n0 += together) {
    float2 of_row[together];
    float4 o[together];
#pragma unroll
    for (int n = 0; n < together; ++n) {
      const Partial at = range_0.after(n0 + n);
      const bool there = n0 + n >= first && n0 + n < end;
      of_row[n] = there ? __ldcg(at.of_row + row) : float2{-INFINITY, 0};
      o[n] = there ? __ldcg(reinterpret_cast<const float4*>(at.at(row, column))) : float4{0, 0, 0, 0};
    }
    all.add(of_row, o, exponent);
  }
  return all;
}

// Row statistics of a tile, from the four warps that share the rows: the largest scores, and π at the end.
struct OfWarps {
  static constexpr int warps = 4, rows = 16;
  float top[warps][rows], sum[warps][rows];

  __device__ __forceinline__ float most(int row, float before) const {
#pragma unroll
    for (int n = 0; n < warps; ++n) before = fmaxf(before, top[n][row]);
    return before;
  }
  __device__ __forceinline__ float pi(int row) const {
    float all = 0;
#pragma unroll
    for (int n = 0; n < warps; ++n) all += sum[n][row];
    return all;
  }
};

// Returns whether this warp is the last of `count` warps to arrive. The last warp sees all writes that the
// other warps made before they arrived. It also resets the counter to 0.
__device__ __forceinline__ bool is_last(int* counter, int count) {
  __syncwarp();
  int last = 0;
  if (tile::lane_id() == 0) {
    __threadfence();
    last = atomicAdd(counter, 1) == count - 1;
    if (last) {
      *counter = 0;
      __threadfence();
    }
  }
  last = __shfl_sync(~0u, last, 0);
  __syncwarp();  // memory that the first lane sees is visible to all lanes
  return last;
}

// Writes results. Merges the streams' results into results of a range or of the call. Each writing warp owns
// some rows and counts their finished ranges. If there are at most `together` ranges, the merge is bitwise
// identical to a merge in groups of 16.
template <class S, class At, class Cache, int warps, int together = 16>
struct Results {
  static constexpr int quads = At::D / 4;
  const AttentionCall& x;
  const Workspace& work;
  const Tiles& tiles;
  unsigned char* memory;
  const int warp;  // index among the writing warps

  __device__ __forceinline__ void write(const Item& item) const {
    const Partial own = partial(x, work, tiles, item, item.range);
    const std::uint64_t stays = ptx::evict_last();
    const float exponent = units_of(x).exponent;
    for_each_quad(item, [&](int row, int column) {
      const MergedSets all = merge_streams<At>(memory, tiles.rows, row, column, exponent);
      if (item.ranges == 1) return put<S>(x, item, row, column, all.as_one(exponent));
      ptx::st_global_v4(own.at(row, column), all.finished(), stays);
      if (column == 0) own.of_row[row] = all.stats();
    });
  }
  // Counts a finished range. The last warp that counts a range of the tile merges the ranges.
  __device__ __forceinline__ void count(const Item& item) const {
    if (!is_last(work.counters + (item.nth_tile * x.Hk + item.head) * most_writers + warp, item.ranges))
      return;
    const Partial range_0 = partial(x, work, tiles, item, 0);
    for_each_quad(item, [&](int row, int column) {
      const int first = item.first_range;
      put<S>(x, item, row, column,
             merge_ranges<together>(range_0, first, first + item.ranges, row, column, units_of(x).exponent));
    });
  }

 private:
  // Calls f(row, column) for the lane's groups of four columns of an item. One warp writes all columns of a
  // row and the row's ξ. The warp's count of finished ranges therefore covers the whole row.
  template <class F>
  __device__ __forceinline__ void for_each_quad(const Item& item, F&& f) const {
    constexpr int each = quads < 32 ? 32 : quads;
    const int all = item.tile.rows * quads;
#pragma unroll 1
    for (int i0 = each * warp + tile::lane_id(); i0 < all; i0 += each * warps)
#pragma unroll
      for (int i = i0; i < i0 + each; i += 32)
        if (const int column = i % quads * 4; column < x.dv) f(i / quads, column);
  }
};

// Main loop of a warp that writes the results of a block's items. The warp counts a finished range one item
// later. By then the writes of that range have completed, so the warp does not wait for them. If the block
// has a single item (`alone`), streaming warps also write. They are idle then, and the call waits for these
// results.
template <class S, class At, class Cache, bool alone>
__device__ __forceinline__ void write_items(const AttentionCall& x, const Workspace& work,
                                            const Items<Cache>& items, unsigned char* memory) {
  constexpr int warps = alone ? At::streams + At::writers : At::writers;
  const Results<S, At, Cache, warps> results{x, work, items.tiles, memory,
                                             static_cast<int>(threadIdx.x) / 32 - (alone ? 0 : At::streams)};
  int uncounted = -1;
#pragma unroll 1
  for (int n = items.first_long(); n < items.count; n += gridDim.x) {
    ptx::bar_sync(results_ready, At::threads);
    if (!alone && uncounted >= 0) results.count(items.at(uncounted));
    const Item item = items.at(n);
    results.write(item);
    uncounted = item.ranges > 1 ? n : -1;
    if (n + static_cast<int>(gridDim.x) < items.count)
#pragma unroll
      for (int stream = 0; stream < At::streams; ++stream)
        ptx::bar_arrive(may_store + stream, 32 * (At::writers + 1));
  }
  if (uncounted >= 0) results.count(items.at(uncounted));
}

}  // namespace tg::cuda::attention::decoding
