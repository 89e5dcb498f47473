// Split-KV decoding of short caches on tensor cores (sm_80 and later). A separate block computes each range
// of a tile's keys. There are no persistent blocks that process many items. Several blocks share a
// multiprocessor. While one block waits for its keys or merges its results, other blocks multiply. Slices,
// streams and ranges are the same as in decoding_sm80.cu, so results are bitwise identical.
//
// A stream prefetches keys as soon as it has multiplied the keys of the previous slice. It prefetches values
// in the same way. One stage for keys and one for values are therefore enough.
//
// The kernel can also append the key and value of a decoding step to the cache (AttentionCall::added). No
// step of the program then writes the other keys and values. They are therefore prefetched before the
// previous kernel ends. The added rows are multiplied directly from their source and never read from the
// cache.
#include "backends/cuda/attention/decoding/decoding_loader.cuh"
#include "backends/cuda/attention/decoding/decoding_merge.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/stages/checks.cuh"
#include "backends/cuda/attention/stages/visible_keys.cuh"
#include "backends/cuda/tile/right_operand.cuh"

namespace tg::cuda::attention {

namespace decoding {

// Maximum number of pages in which a range has keys.
template <class Ranges>
TG_HOST_DEVICE inline int pages_of_range(const AttentionCall& x, Ranges ranges, int range) {
  const unsigned begin = ranges.begin(range), end = ranges.begin(range + 1);
  return static_cast<int>((end - 1) / x.page - begin / x.page) + 1;
}

// Checks the inputs of a block's range: the sequence length, and the table entries of the pages.
template <class Cache>
__device__ __forceinline__ void check_range(const AttentionCall& x, const Plan<Cache>& plan, int b, int range,
                                            const Faults& faults) {
  if (range == 0 && threadIdx.x == 0) check_length(x, faults, b);
  if constexpr (std::is_same_v<Cache, InPages>) {
    const int first = static_cast<int>(plan.ranges.begin(range)) / x.page,
              end = min(first + pages_of_range(x, plan.ranges, range), x.pages);
#pragma unroll 1
    for (int n = first + static_cast<int>(threadIdx.x); n < end; n += blockDim.x)
      check_page(x, faults, i64{b} * x.pages + n);
  }
}

// A shape like TileShape<2, D, 8, 8>. However, a warp may process several streams, one after the other, and
// all warps write results.
template <int D_, int warps_, int stages_>
struct SplitKvShape {
  using Streams = TileShape<2, D_, 8, 8>;
  static constexpr int D = D_, rows = Streams::rows, streams = Streams::streams, keys = Streams::keys,
                       step = Streams::step, warps = warps_, threads = 32 * warps, stages = stages_,
                       blocks = stages > 1 ? 1 : (D == 64 ? 24 : 16) / warps;  // per multiprocessor
  static constexpr int half = Streams::half, stage = Streams::stage, ring = stages * stage;  // per warp
  static constexpr int row = Streams::row, seen = warps * ring,
                       tops = aligned(seen + warps * 2 * rows * int(sizeof(int)), 16);
  TG_HOST_DEVICE static constexpr int sums(int queries) {
    return tops + aligned(streams * queries * int(sizeof(float2)), 16);
  }
  // Offsets of the block's item, and of the page numbers of its range.
  TG_HOST_DEVICE static constexpr int item(int queries) {
    return aligned(sums(queries) + streams * queries * row * int(sizeof(float)), 16);
  }
  TG_HOST_DEVICE static constexpr int pages(int queries) { return item(queries) + int(sizeof(Item)); }
  static constexpr int bytes(int queries, int pages_of_range) {
    return pages(queries) + pages_of_range * int(sizeof(int));
  }
  TG_HOST_DEVICE static int rows_of_tile(const AttentionCall& x) {
    return rows_of(x) < rows ? rows_of(x) : rows;
  }
};

// Copies the slices of an item. The keys and the values of a slice are separate groups.
template <class S, class At, class Cache>
struct Slices {
  using Lanes = Copies<S, At>;
  static constexpr bool in_pages = std::is_same_v<Cache, InPages>;
  const AttentionCall& x;
  const Item& item;
  const int* pages;  // page numbers of the range, in shared memory; `first_page` is the first page
  const int first_page;
  Lanes keys, values;
  int key = 0;       // first key of the slice
  RowAddress place;  // paged: location of the lane's key of the slice

  __device__ __forceinline__ Slices(const AttentionCall& x, const Item& item, u32 ring, const int* pages,
                                    int first_page)
      : x(x), item(item), pages(pages), first_page(first_page), keys(ring), values(ring) {
    if constexpr (in_pages) place.enter(item);
  }
  __device__ __forceinline__ void find(int first_key) {
    key = first_key;
    if constexpr (in_pages) {
      const int j = key + lane_id() % At::keys;
      const bool there = j < item.keys.to;
      place.in_page = there ? j % x.page : 0;
      place.number = there ? pages[j / x.page - first_page] : 0;
    }
  }
  __device__ __forceinline__ void fetch_keys() {
    copy(x.k, [&](int n, const S* from, bool seen) { keys.copy_keys(n, from, seen, x.d); });
    keys.end_slice();
  }
  __device__ __forceinline__ void fetch_values() {
    copy(x.v, [&](int n, const S* from, bool seen) { values.copy_values(n, from, seen, x.dv); });
    values.end_slice();
  }
  // Calls f(row of the slice, index of the added row) for all rows added to the slice at `first_key`, in
  // order.
  template <class F>
  __device__ __forceinline__ void for_each_added(int first_key, F&& f) {
    find(first_key);
#pragma unroll 1
    for (int n0 = 0; n0 < x.added.count; n0 += 32) {
      const int n = n0 + lane_id(), row = row_of(n < x.added.count ? x.added.rows[n] : -1);
#pragma unroll 1
      for (unsigned left = __ballot_sync(~0u, row >= 0); left != 0; left &= left - 1) {
        const int lane = __ffs(static_cast<int>(left)) - 1;
        f(__shfl_sync(~0u, row, lane), n0 + lane);
      }
    }
  }

 private:
  __device__ __forceinline__ bool sees(int j) const {
    return j >= item.keys.from && j < item.keys.to;
  }
  template <class Copy>
  __device__ __forceinline__ void copy(const AttentionCall::TensorView& a, Copy&& copy) const {
    if (key >= item.keys.to) return;
    if constexpr (in_pages) {
      const u32 begin = place.begin<S>(x, a);
#pragma unroll
      for (int n = 0; n < At::keys; n += Lanes::rows) {
        const int r = Lanes::row() + n;
        copy(n, at_piece<S>(a, __shfl_sync(~0u, begin, r) + Lanes::piece()), sees(key + r));
      }
    } else {
      const S* from =
          a.at<S>(item.tile.b, item.head) + i64{key + Lanes::row()} * a.row + Lanes::piece() * Lanes::each;
#pragma unroll
      for (int n = 0; n < At::keys; n += Lanes::rows, from += Lanes::rows * a.row)
        copy(n, from, sees(key + Lanes::row() + n));
    }
  }
  // The row of the slice that corresponds to a row of the cache; −1 if the row is not visible or not in the
  // slice. Called by all lanes.
  __device__ __forceinline__ int row_of(int of_cache) const {
    int found = -1;
    if constexpr (in_pages) {
      // Keys of a page are adjacent in memory. All keys of a run are in one page.
      const int run = x.page < At::keys ? x.page : At::keys, begin = place.number * x.page + place.in_page;
#pragma unroll 1
      for (int n = 0; n < At::keys && key + n < item.keys.to; n += run) {
        const int nth = of_cache - __shfl_sync(~0u, begin, n);
        if (nth >= 0 && nth < run) found = n + nth;
      }
    } else {
      const int nth = of_cache - (item.tile.b * x.T + key);
      if (nth >= 0 && nth < At::keys) found = nth;
    }
    return found >= 0 && sees(key + found) ? found : -1;
  }
};

// Calls f(is_value, piece) for the 16-byte pieces of a key and its value. One half of the warp handles the
// key, the other half the value.
template <class S, class F>
__device__ __forceinline__ void for_each_piece(const AttentionCall& x, F&& f) {
  const bool of_values = lane_id() >= 16;
  const int piece = lane_id() % 16, size = of_values ? x.dv : x.d;
  if (piece * static_cast<int>(16 / sizeof(S)) < size) f(of_values, piece);
}

// The cache row to which sequence b's key and value are appended; −1: none. If several sequences have the
// same row, the last one is used. Called by a warp. The previous step specifies the rows, so faults are
// reported for that step.
__device__ __forceinline__ int added_row(const AttentionCall& x, int b, const Faults& faults) {
  const int row = x.added.rows[b], page = x.table ? x.page : x.T;
  bool again = false;
#pragma unroll 1
  for (int n = b + 1 + lane_id(); n < x.added.count; n += 32) again |= x.added.rows[n] == row;
  if (__any_sync(~0u, again) || row == -1) return -1;
  const i64 rows = (x.table ? i64{x.pool} : x.B) * page;
  if (row >= 0 && row < rows) return row;
  if (lane_id() == 0) Faults{faults.fault, faults.step - 1}.check_index(row, rows, b);
  return -1;
}
template <class S>
__device__ __forceinline__ void add(const AttentionCall& x, int b, int head, int row) {
  const int page = x.table ? x.page : x.T;
  if (row >= 0)
    for_each_piece<S>(x, [&](bool of_values, int piece) {
      const AttentionCall::TensorView &to = of_values ? x.v : x.k, &from = of_values ? x.added.v : x.added.k;
      const int column = piece * static_cast<int>(16 / sizeof(S));
      const uint4 moved = __ldcg(reinterpret_cast<const uint4*>(from.at<S>(b, head) + column));
      *reinterpret_cast<uint4*>(to.at<S>(row / page, head) + i64{row % page} * to.row + column) = moved;
    });
}

// Iterates over the slices of a warp's streams: first_key() of each stream, then every At::step keys.
template <class At>
struct SliceCursor {
  const KeyRange keys;
  int stream, key;

  __device__ __forceinline__ SliceCursor(KeyRange keys, int warp)
      : keys(keys), stream(warp), key(first_key<At>(keys, warp)) {
    find();
  }
  __device__ __forceinline__ bool at_end() const { return stream >= At::streams; }
  __device__ __forceinline__ void next() { key += At::step, find(); }

 private:
  __device__ __forceinline__ void find() {
    while (key >= keys.to && !at_end()) {
      stream += At::warps;
      if (!at_end()) key = first_key<At>(keys, stream);
    }
  }
};

// Computes a warp's streams of an item.
template <class S, class At, Options options, class Cache>
__device__ __forceinline__ void multiply(const AttentionCall& x, const Plan<Cache>& plan, const Item& item,
                                         unsigned char* memory, const int* pages, int first_page,
                                         int row_added) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const u32 ring = shared_address(memory) + warp * At::ring;
  Slices<S, At, Cache> slices(x, item, ring, pages, first_page);
  unsigned some_added = 0;  // bit n: rows are added to the warp's nth slice; a range has at most 16
  if (x.added.count > 0) {
    unsigned bit = 1;
    for (SliceCursor<At> at(item.keys, warp); !at.at_end(); at.next(), bit *= 2)
      slices.for_each_added(at.key, [&](int, int) { some_added |= bit; });
  }
  if (!x.fixed_keys) wait_for_kernel_before();
  SliceCursor<At> ahead(item.keys, warp);
#pragma unroll 1
  for (int n = 0; n < At::stages; ++n, ahead.next()) {
    slices.find(ahead.key);
    slices.fetch_keys(), slices.fetch_values();
  }
  wait_for_kernel_before();
  add<S>(x, item.tile.b, item.head, row_added);
  RightOperand<At::rows, At::D> q;
  load(
      q, [&](int r) { return query<S>(x, item, r); }, x.d);
  const Score<S> score(plan.factor, plan.cap);
  const float factor = options == any ? 1 : score.factor;
  auto& seen = reinterpret_cast<VisibleKeys<At::rows>*>(memory + At::seen)[warp];
  bool knows_seen = false;
  int slot = 0;
#pragma unroll 1
  for (int stream = warp; stream < At::streams; stream += At::warps) {
    Accumulator<At::D, At::rows> o;
    o.fill(0);
    ColumnSoftmax<At::rows> softmax;
#pragma unroll 1
    for (int key = first_key<At>(item.keys, stream); key < item.keys.to; key += At::step) {
      const SharedTile<At::D> k{ring + slot * At::stage}, v{k.base + At::half};
      slot = slot + 1 < At::stages ? slot + 1 : 0;
      if (some_added & 1) {
        wait();  // the row that the added row replaces must have arrived
        __syncwarp();
        slices.for_each_added(key, [&](int row, int n) {
          for_each_piece<S>(x, [&](bool of_values, int piece) {
            const AttentionCall::TensorView& from = of_values ? x.added.v : x.added.k;
            ptx::cp_async_16((of_values ? v : k).address(row, piece),
                             from.at<S>(n, item.head) + piece * static_cast<int>(16 / sizeof(S)), 16);
          });
          commit();
          wait();  // copies to the same address are unordered
        });
      }
      some_added /= 2;
      ptx::cp_async_wait<2 * At::stages - 1>();
      __syncwarp();
      Accumulator<At::keys, At::rows> s;
      s.fill(0);
      mma_ABt<S>(s, k, q);  // Aᵀ
      __syncwarp();         // no lane needs the keys
      slices.find(ahead.key);
      ahead.next();
      slices.fetch_keys();
      if constexpr (options == any) score.apply(s);
      if (!covers(item.every, key, At::keys)) {
        if (!knows_seen) {
          seen.set_of_groups(Band(x, sequence_of_query(x, item.tile.b, 0)), group_of(x), item.tile.row0,
                             item.tile.rows);
          __syncwarp();
          knows_seen = true;
        }
        mask<false>(s, seen, 0, 0, key);
      }
      // c, π, Gᵀ rescaled, P = exp(A − c)
      softmax.step(s, factor, [&](int c, float by) { scale_column(o, c, by); });
      ptx::cp_async_wait<2 * At::stages - 1>();
      __syncwarp();
      mma_AtBt<S>(o, v, right_operand<S>(s));  // Gᵀ += Vᵀ·Pᵀ
      __syncwarp();                            // no lane needs the values
      slices.fetch_values();
    }
    store_results(StreamResults<At>(memory, stream, At::rows_of_tile(x)), softmax, o);
  }
}

template <class S, class At, Options options, class Cache>
__global__ void __launch_bounds__(At::threads, At::blocks)
    decode_split_kv(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work,
                    const __grid_constant__ Plan<Cache> plan, Faults faults) {
  TG_DYNAMIC_SHARED(memory, 1024);
  let_next_kernel_begin();
  if (!x.fixed_positions) wait_for_kernel_before();
  const int head = static_cast<int>(blockIdx.x), range = static_cast<int>(blockIdx.y),
            nth = static_cast<int>(blockIdx.z), thread = static_cast<int>(threadIdx.x);
  const Tile tile = tile_at<Cache>(x, plan.tiles, nth);
  int* const pages = reinterpret_cast<int*>(memory + At::pages(plan.tiles.rows));
  int first_page = 0;
  if constexpr (std::is_same_v<Cache, InPages>) {
    first_page = static_cast<int>(plan.ranges.begin(range)) / x.page;  // its pages are read together
    const int count = min(pages_of_range(x, plan.ranges, range), x.pages - first_page);
#pragma unroll 1
    for (int n = thread; n < count; n += At::threads)
      pages[n] = x.table[i64{tile.b} * x.pages + first_page + n];
  }
  Item& item = *reinterpret_cast<Item*>(memory + At::item(plan.tiles.rows));
  if (thread == 0) {
    const Entry entry{0, tile.some_of(x, Band(x, sequence_of_query(x, tile.b, 0)))};
    item = item_of<Cache>(x, plan.ranges, plan.tiles, nth, head, entry, range);
  }
  __syncthreads();
  if (head == 0 && tile.row0 == 0) check_range(x, plan, tile.b, range, faults);
  // Added rows are always stored, even if the range is not read.
  const bool adds = range == 0 && tile.row0 == 0 && x.added.count > 0 && thread >= At::threads - 32;
  const int row = adds ? added_row(x, tile.b, faults) : -1;
  if (range < item.first_range || range >= item.first_range + item.ranges) {
    wait_for_kernel_before();
    return add<S>(x, tile.b, head, row);
  }
  multiply<S, At, options, Cache>(x, plan, item, memory, pages, first_page, row);
  __syncthreads();
  const Results<S, At, Cache, At::warps, most_split> results{x, work, plan.tiles, memory, thread / 32};
  results.write(item);
  if (item.ranges > 1) results.count(item);
}

template <class S, class At, Options options, class Cache>
void launch_blocks(const Stream& s, const AttentionCall& x, const Workspace& work, int pages) {
  for_each_launch<Cache>(x, [&](const Plan<Cache>& plan) {
    const dim3 grid(static_cast<unsigned>(x.Hk), static_cast<unsigned>(work.parts),
                    static_cast<unsigned>(plan.tiles.count));
    launch_early(s, {grid, At::threads, static_cast<std::size_t>(At::bytes(plan.tiles.rows, pages))},
                 decode_split_kv<S, At, options, Cache>, x, work, plan, s.faults);
  });
}

}  // namespace decoding

// If the blocks do not fill the GPU, each stream keeps three slices in flight.
void launch_decoding_split_kv(const Stream& s, const AttentionCall& x, const Workspace& work) {
  using namespace decoding;
  const i64 blocks = i64{x.Hk} * work.parts * tiles_of_launch(x, 0).count;
  with_cache(x, [&](auto cache) {
    using Cache = decltype(cache);
    int pages = 0;  // maximum per range
    for (int n = 0; x.table && n < work.parts; ++n)
      pages = std::max(pages, pages_of_range(x, Cache::ranges(x), n));
    with_16_bits(x.type, [&](auto zero) {
      with_constant<none, any>(has_plain_scores(x) ? none : any, [&](auto options) {
        with_constant<64, 128>(std::max(x.d, x.dv), [&](auto d) {
          using S = decltype(zero);
          using Ahead = SplitKvShape<d, 8, 3>;
          if (blocks <= s.gpu.processors && Ahead::bytes(rows_of_tile(x), pages) <= s.gpu.shared_per_block)
            launch_blocks<S, Ahead, options, Cache>(s, x, work, pages);
          else
            launch_blocks<S, SplitKvShape<d, 4, 1>, options, Cache>(s, x, work, pages);
        });
      });
    });
  });
}

}  // namespace tg::cuda::attention
