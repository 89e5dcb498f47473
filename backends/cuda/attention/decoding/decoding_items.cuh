// Work items of decoding. An item is a range of a batch entry's keys, for a tile of a key head's rows. The
// items depend on the lengths of the entries, which only the GPU knows. Each block therefore builds a table
// of the tiles. From this table it can find any item.
#pragma once

#include <type_traits>

#include "backends/cuda/attention/decoding/decoding.h"
#include "backends/cuda/attention/stages/score.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/tile/accumulator.cuh"

namespace tg::cuda::attention::decoding {

// Rows of a batch entry.
struct Tile {
  int b, row0, rows;
  __device__ __forceinline__ KeyRange some_of(const AttentionCall& x, const Band& band) const {
    return band.some_of(row0 / group_of(x), (row0 + rows - 1) / group_of(x));
  }
  __device__ __forceinline__ KeyRange every_of(const AttentionCall& x, const Band& band) const {
    return band.every_of(row0 / group_of(x), (row0 + rows - 1) / group_of(x));
  }
};

struct alignas(16) Item {
  Tile tile;
  int nth_tile, head, first_head;  // tile's index in the launch; key head; its first query head
  int range, first_range, ranges;  // the item's range; the tile's first range and number of ranges
  KeyRange keys, every;            // keys of the range that some row sees; that all rows see
  bool is_short;                   // whether a single warp computes the item
};
static_assert(sizeof(Item) == item_bytes);

// The query of row r of an item's tile: query i of a head.
struct QueryPlace {
  int head, i;
  __device__ __forceinline__ QueryPlace(const AttentionCall& x, const Item& item, int r) {
    const int row = item.tile.row0 + r;
    i = x.L == 1 ? 0 : row / group_of(x);
    head = item.first_head + row - (i == 0 ? 0 : i * group_of(x));
  }
};

// Inclusive prefix sum over the warp's lanes.
template <class N>
__device__ __forceinline__ N sum_to_lane(N own) {
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const N other = __shfl_up_sync(~0u, own, by);
    if (tile::lane_id() >= by) own += other;
  }
  return own;
}

// Number of ranges at a sequence's start that are shorter than later ranges.
__device__ __forceinline__ int early_ranges(EqualRanges) {
  return 0;
}
__device__ __forceinline__ int early_ranges(GrowingRanges ranges) {
  const int all = GrowingRanges::each >> ranges.bits;
  return all > 1 ? all : 0;
}
// The number of early ranges and the number of other ranges, packed into one word. If a launch has early
// ranges (at most 4 per tile), it has fewer than 2¹⁹ other ranges.
template <class Ranges>
struct Counted {
  static constexpr int bits = std::is_same_v<Ranges, GrowingRanges> ? 19 : 31;
  static __device__ __forceinline__ unsigned of(int early, int others) {
    return static_cast<unsigned>(early) << bits | static_cast<unsigned>(others);
  }
  static __device__ __forceinline__ int early(unsigned word) { return static_cast<int>(word >> bits); }
  static __device__ __forceinline__ int others(unsigned word) {
    return static_cast<int>(word & ((1u << bits) - 1));
  }
};

struct Entry {
  unsigned before;  // ranges of all previous tiles, without the last range of each (Counted)
  KeyRange keys;    // keys that some row sees; a tile without such keys has one empty range

  template <class Ranges>
  __device__ __forceinline__ int first(Ranges ranges) const {
    return ranges.of(keys.from);
  }
  template <class Ranges>
  __device__ __forceinline__ int last(Ranges ranges) const {
    return ranges.of(keys.from < keys.to ? keys.to - 1 : keys.from);
  }
};

// The nth tile of a launch.
template <class Cache>
__device__ __forceinline__ Tile tile_at(const AttentionCall& x, const Tiles& tiles, int nth) {
  if constexpr (std::is_same_v<Cache, InOnePiece>) {
    return {nth, 0, tiles.rows};
  } else {
    const int n = tiles.first + nth, row0 = n % tiles.of_entry * tiles.rows;
    return {n / tiles.of_entry, row0, min(tiles.rows, rows_of(x) - row0)};
  }
}

// The item of one range of a tile. `e` is the tile's entry.
template <class Cache>
__device__ __forceinline__ Item item_of(const AttentionCall& x, typename Cache::Ranges ranges,
                                        const Tiles& tiles, int nth_tile, int head, const Entry& e,
                                        int range) {
  Item item;
  item.tile = tile_at<Cache>(x, tiles, nth_tile), item.nth_tile = nth_tile;
  item.head = head, item.first_head = head * group_of(x);
  item.range = range, item.first_range = e.first(ranges);
  item.ranges = e.last(ranges) - item.first_range + 1;
  const unsigned from = ranges.begin(range), to = ranges.begin(range + 1);
  item.keys = {static_cast<int>(max(static_cast<unsigned>(e.keys.from), from)),
               static_cast<int>(min(static_cast<unsigned>(e.keys.to), to))};
  item.every = item.tile.every_of(x, Band(x, sequence_of_query(x, item.tile.b, 0)));
  item.every = {max(item.every.from, item.keys.from), min(item.every.to, item.keys.to)};
  item.is_short = false;
  return item;
}

// Short tiles have so few keys that a single warp computes each. With many items, this is faster than several
// warps for each tile. `order` lists the short tiles from the front and all others from the back.
struct ShortTiles {
  int count;
  unsigned short order[most_entries];
};

// Maps item numbers to items, longest items first, because each of n blocks processes every nth item. The
// order is:
// - short tiles; they are distributed over the streams of all blocks
// - ranges that are neither early nor the last of their tile
// - last ranges, of any length
// - early ranges
//
// The key heads of a range are adjacent.
template <class Cache>
struct Items {
  using Ranges = typename Cache::Ranges;
  using Count = Counted<Ranges>;
  const AttentionCall& x;
  Ranges ranges;
  Tiles tiles;
  Entry* entries;           // [tiles + 1], in shared memory
  ShortTiles* short_tiles;  // in shared memory; null if no tile is short
  Item* noted;        // shared memory for the block's first items [most_noted] and one per stream; or null
  int count, shorts;  // all items; short tiles among them
  int early, others;  // ranges that are not the last of their tile
  int own_shorts;     // short tiles of this block

  // Called by the whole block. A tile is short if its keys are between two adjacent multiples of
  // `short_keys`. Every range begins at such a multiple, so a short tile has one range.
  __device__ Items(const AttentionCall& x, Ranges ranges, const Tiles& tiles, Entry* entries,
                   Item* noted = nullptr, ShortTiles* short_tiles = nullptr, int short_keys = 1)
      : x(x), ranges(ranges), tiles(tiles), entries(entries), short_tiles(short_tiles), noted(noted) {
#pragma unroll 1
    for (int n = threadIdx.x; n <= tiles.count; n += blockDim.x) {
      Entry e{0, {0, 0}};
      if (n < tiles.count) {
        const Tile tile = tile_at<Cache>(x, tiles, n);
        e.keys = tile.some_of(x, Band(x, sequence_of_query(x, tile.b, 0)));
      }
      const int first = e.first(ranges), last = e.last(ranges),
                early = max(min(last, early_ranges(ranges)) - first, 0);
      e.before = Count::of(early, last - first - early);
      entries[n] = e;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      sum_up();
      if (short_tiles) order(short_keys);
    }
    __syncthreads();
    early = Count::early(entries[tiles.count].before), others = Count::others(entries[tiles.count].before);
    count = (early + others + tiles.count) * x.Hk;
    shorts = short_tiles ? short_tiles->count * x.Hk : 0;
    // If a block has only one or two short tiles, all streams together compute them faster.
    if (shorts < 2 * static_cast<int>(gridDim.x)) this->short_tiles = nullptr, shorts = 0;
    const int first = static_cast<int>(blockIdx.x), step = static_cast<int>(gridDim.x);
    own_shorts = first < shorts ? (shorts - first - 1) / step + 1 : 0;
    if (!noted) return;
#pragma unroll 1
    for (int i = threadIdx.x; i < most_noted; i += blockDim.x)
      if (const int n = i < own_shorts ? first + i * step : shorts + first + (i - own_shorts) * step;
          n < count)
        noted[i] = find(n);
    __syncthreads();
  }

  // Items of a streaming warp: first the warp's short items, then all other items of the block.
  __device__ int first(int stream) const {
    return or_long(static_cast<int>(blockIdx.x + stream * gridDim.x));
  }
  __device__ int after(int n, int streams) const {
    return short_tiles && n < shorts ? or_long(n + streams * static_cast<int>(gridDim.x))
                                     : n + static_cast<int>(gridDim.x);
  }
  // The block's first item that is not short.
  __device__ int first_long() const {
    return shorts + static_cast<int>(blockIdx.x);
  }

  // One of the block's items.
  __device__ Item at(int n) const {
    const int i = noted ? place_in_table(n) : most_noted;
    return i < most_noted ? noted[i] : find(n);
  }
  // Returns an item in shared memory, because a stream has no registers for the item while it multiplies. The
  // item is valid until the stream's next call. Called by the stream's warp.
  __device__ const Item* kept(int n, int stream) const {
    const int i = place_in_table(n);
    if (i < most_noted) return noted + i;
    Item* const own = noted + most_noted + stream;
    __syncwarp();  // no lane needs the previous item
    if (tile::lane_id() == 0) *own = find(n);
    __syncwarp();
    return own;
  }

 private:
  __device__ __forceinline__ int place_in_table(int n) const {
    const bool is_short = short_tiles && n < shorts;
    const unsigned of_kind = static_cast<unsigned>(is_short ? n : n - shorts) / gridDim.x;
    return static_cast<int>(is_short ? of_kind : own_shorts + of_kind);
  }
  __device__ Item find(int n) const {
    const bool is_short = short_tiles && n < shorts;
    const int nth = (is_short ? n : n - shorts) / x.Hk, lasts = tiles.count - shorts / x.Hk;
    int nth_tile, range;
    if (is_short || (nth >= others && nth < others + lasts)) {
      nth_tile = is_short ? short_tiles->order[nth] : long_tile(nth - others);
      range = entries[nth_tile].last(ranges);
    } else {
      const bool is_early = nth >= others;
      const int of_kind = is_early ? nth - others - lasts : nth;
      nth_tile = entry_of(of_kind, is_early);
      const Entry e = entries[nth_tile];
      range = of_kind - counted(e.before, is_early) +
              (is_early ? e.first(ranges) : max(e.first(ranges), early_ranges(ranges)));
    }
    const Entry e = entries[nth_tile];
    Item item = item_of<Cache>(x, ranges, tiles, nth_tile, n % x.Hk, e, range);
    item.is_short = is_short;
    return item;
  }
  __device__ int or_long(int n) const {
    return short_tiles && n < shorts ? n : first_long();
  }
  __device__ int long_tile(int nth) const {
    return short_tiles ? short_tiles->order[tiles.count - 1 - nth] : nth;
  }
  // Replaces each entry's count by the sum of all previous counts. Called by one warp.
  __device__ void sum_up() {
    unsigned sum = 0;
#pragma unroll 1
    for (int b0 = 0; b0 <= tiles.count; b0 += 32) {
      const int b = b0 + tile::lane_id();
      const unsigned own = b <= tiles.count ? entries[b].before : 0;
      const unsigned up_to = sum_to_lane(own);
      if (b <= tiles.count) entries[b].before = sum + up_to - own;
      sum += __shfl_sync(~0u, up_to, 31);
    }
  }
  // Sorts tiles into short ones and others. Called by one warp.
  __device__ void order(int short_keys) {
    int shorts = 0;
#pragma unroll 1
    for (int b0 = 0; b0 < tiles.count; b0 += 32) {
      const int b = b0 + tile::lane_id();
      const KeyRange keys = entries[b < tiles.count ? b : 0].keys;
      const bool is_short = b < tiles.count && (keys.to - 1) / short_keys <= keys.from / short_keys;
      const unsigned all = __ballot_sync(~0u, is_short);
      const int before = shorts + __popc(all & ((1u << tile::lane_id()) - 1));
      if (b < tiles.count)
        short_tiles->order[is_short ? before : tiles.count - 1 - (b - before)] =
            static_cast<unsigned short>(b);
      shorts += __popc(all);
    }
    if (tile::lane_id() == 0) short_tiles->count = shorts;
  }
  static __device__ __forceinline__ int counted(unsigned before, bool is_early) {
    return is_early ? Count::early(before) : Count::others(before);
  }
  // The last entry that is preceded by at most `nth` ranges of this kind.
  __device__ int entry_of(int nth, bool is_early) const {
    int low = 0, high = tiles.count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (counted(entries[middle].before, is_early) <= nth ? low : high) = middle;
    }
    return low;
  }
};

// Kernel parameters of a launch in addition to the call.
template <class Cache>
struct Plan {
  Cache cache;
  typename Cache::Ranges ranges;
  float factor, cap;  // as in Score
  Tiles tiles;
};
// Calls f(plan) for each launch of a call.
template <class Cache, class F>
void for_each_launch(const AttentionCall& x, F&& f) {
  Plan<Cache> plan{
      Cache(x), Cache::ranges(x), static_cast<float>(factor_of(x)), static_cast<float>(cap_of(x)), {}};
  for (int n = 0; plan.tiles = tiles_of_launch(x, n), plan.tiles.count > 0; ++n) f(plan);
}
// Calls f(cache) with the layout of the call's keys.
template <class F>
void with_cache(const AttentionCall& x, F&& f) {
  x.table ? f(InPages(x)) : f(InOnePiece(x));
}

// The query of row r of an item's tile; null beyond its rows.
template <class S>
__device__ __forceinline__ const S* query(const AttentionCall& x, const Item& item, int r) {
  if (r >= item.tile.rows) return nullptr;
  const QueryPlace at(x, item, r);
  return x.q.at<S>(item.tile.b, at.head) + at.i * x.q.row;
}

}  // namespace tg::cuda::attention::decoding
