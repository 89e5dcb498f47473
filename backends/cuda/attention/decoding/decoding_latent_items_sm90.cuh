// Common part of the wgmma kernels for latents (decoding_latent_sm90.cu, decoding_latent_16_sm90.cu). An item
// is one query with some of its heads, and a range of the keys that this query sees. All rows of a tile
// therefore see the same keys. A row's result is bitwise independent of other queries and of the block that
// computes a range.
//
// A paged cache is read in boxes of a tensor map. A tile of 64 keys has several boxes. A contiguous cache has
// one page per sequence (in_pages()). Each range stores O, c and π, and a second kernel merges them.
#pragma once

#include <numeric>

#include "backends/cuda/attention/decoding/decoding_loader.cuh"
#include "backends/cuda/attention/decoding/decoding_merge.cuh"
#include "backends/cuda/attention/forward/forward_sm90.cuh"
#include "backends/cuda/attention/stages/checks.cuh"

namespace tg::cuda::attention::latents_sm90 {

using namespace tile;
using decoding::EqualRanges, decoding::Partial;
constexpr int tile_keys = 64, most_values = 512;

// In the kernels, x.L is the number of rows of an item, and `queries` is the number of queries per sequence.
struct Plan : forward_sm90::Plan {
  EqualRanges ranges;
  decoding::Tiles tiles;  // queries that the launch computes
  int pieces;             // pieces of the heads that share a key head
  int box_rows;           // rows per box of keys; 0: pages have too few rows, so rows are copied individually
};

// Index of a range's results, for a query of the launch and the nth piece of all heads.
__device__ __forceinline__ int place_of(const AttentionCall& x, const Plan& plan, int query, int nth,
                                        int range) {
  return (query * x.Hk * plan.pieces + nth) * plan.parts + range;
}

// Visible keys of the nth query of a launch.
__device__ __forceinline__ KeyRange keys_of(const AttentionCall& x, const Plan& plan, int nth) {
  AttentionCall one = x;
  one.L = plan.queries;
  const int at = plan.tiles.first + nth;
  return keys_visible_to(one, at / plan.queries, at % plan.queries);
}

// Finds items; used by one warp. The last range of each query may be short. The last ranges therefore follow
// all other ranges. The pieces of heads of a range are adjacent.
struct Items {
  const AttentionCall& x;
  const Plan& plan;
  const int each;                       // items per range
  int pass = 0, query = 0, before = 0;  // current pass; first query that the lanes examine; items before it
  int nth = 0, range = 0;               // the found item's index among the pieces of all heads; its range
  KeyRange keys{};                      // visible keys of the item's query

  // Finds item n, which must not precede the item found before. Returns false if there are no more items.
  __device__ __forceinline__ bool find(int n) {
#pragma unroll 1
    while (pass < 2) {
      const bool there = query + lane_id() < plan.tiles.count;
      const KeyRange seen = there ? keys_of(x, plan, query + lane_id()) : KeyRange{0, 0};
      const bool some = seen.from < seen.to;
      const int first = plan.ranges.of(seen.from), last = some ? plan.ranges.of(seen.to - 1) : first,
                own = each * (pass == 0 ? last - first : some);
      const int up_to = decoding::sum_to_lane(own);
      if (const unsigned after = __ballot_sync(~0u, n - before < up_to)) {
        const int lane = __ffs(static_cast<int>(after)) - 1,
                  nth_of_query = n - before - __shfl_sync(~0u, up_to - own, lane);
        nth = nth_of_query % each;
        range =
            pass == 0 ? __shfl_sync(~0u, first, lane) + nth_of_query / each : __shfl_sync(~0u, last, lane);
        keys = {__shfl_sync(~0u, seen.from, lane), __shfl_sync(~0u, seen.to, lane)};
        found = query + lane;
        return true;
      }
      before += __shfl_sync(~0u, up_to, 31), query += 32;
      if (query >= plan.tiles.count) query = 0, ++pass;
    }
    return false;
  }
  int found = 0;  // its query
};

// Scheduler warp. If the previous kernel does not write the lengths, it prepares the first item before that
// kernel has ended. An item must have the fields of forward_sm90::Item that are set here. It must also have
// the query of its sequence, and its first head as h. A warp calls its set_seen() with the visible keys.
template <class Shared>
__device__ __forceinline__ void schedule(const Shared& shared, const AttentionCall& x, const Plan& plan) {
  if (!x.fixed_positions) ptx::wait_for_kernel_before();
  Items work{x, plan, x.Hk * plan.pieces};
#pragma unroll 1
  for (u32 items = 0, n = blockIdx.x;; ++items) {
    shared.ring_items().acquire(items);
    auto& item = shared.item_of(items);
    const bool more = work.find(static_cast<int>(n));
    if (more) {
      const int from = static_cast<int>(plan.ranges.begin(work.range)), to = from + plan.ranges.each,
                at = plan.tiles.first + work.found;
      const KeyRange keys{max(work.keys.from, from), min(work.keys.to, to)};
      item.set_seen(keys);
      if (lane_id() == 0) {
        item.b = at / plan.queries, item.query = at % plan.queries;
        item.h =
            work.nth / plan.pieces * decoding::group_of(x) + work.nth % plan.pieces * decoding::most_heads;
        item.some = keys, item.range = {keys, tile_keys};
      }
    }
    if (lane_id() == 0) item.batch_head = more ? place_of(x, plan, work.found, work.nth, work.range) : -1;
    __syncwarp();
    if (lane_id() == 0) shared.ring_items().announce(items);
    if (items == 0) ptx::wait_for_kernel_before();  // the previous kernel may use the same counter
    if (!more) break;
    n = __reduce_add_sync(~0u, lane_id() == 0 ? gridDim.x + atomicAdd(&plan.taken->items, 1) : 0);
  }
  if (lane_id() == 0) plan.taken->leave();
}

// Fields of an item that loading warps read.
struct Source {
  decoding::LatentRowAddress place{};  // sequence and key head; after a lookup: a row's location
  int head, query;
  KeyRange some;
  Tiles range;

  template <class Item>
  __device__ __forceinline__ Source(const Item& item, const AttentionCall& x)
      : head(item.h), query(item.query), some(item.some), range(item.range) {
    place.b = item.b, place.head = head / decoding::group_of(x);
  }
  // Whether only the visible rows of a tile are copied, because the memory of other keys may contain
  // anything.
  __device__ __forceinline__ bool by_rows(const Plan& plan, int tile) const {
    return plan.box_rows == 0 || !covers(some, tile * tile_keys, tile_keys);
  }
};

// Calls f(source, index) for each item of the block; called by a loading warp.
template <class Shared, class F>
__device__ __forceinline__ void each_item(const Shared& shared, const AttentionCall& x, F&& f) {
#pragma unroll 1
  for (u32 items = 0;; ++items) {
    shared.ring_items().wait(items);
    const auto& item = shared.item_of(items);
    if (__reduce_max_sync(~0u, item.batch_head) < 0) return;
    Source from(item, x);
    shared.ring_items().release(items);
    f(from, items);
  }
}

// Loads a third of a tile of keys in boxes. Each lane has the location of one box. Called by one warp.
template <class Tile>
__device__ __forceinline__ void load_keys(Tile to, const Plan& plan, u32 barrier,
                                          const decoding::RowAddress& place, int column0) {
#pragma unroll 1
  for (int box = 0; box * plan.box_rows < Tile::rows; ++box) {
    const int page = __shfl_sync(~0u, place.number, box), row = __shfl_sync(~0u, place.in_page, box);
    if (lane_id() > 0) continue;
#pragma unroll
    for (int n = 0; n < Tile::blocks; ++n)
      ptx::tma_load(to.base + n * Tile::block + box * plan.box_rows * 128, &plan.k, barrier, column0 + n * 64,
                    row, place.head, page);
  }
}

// Copies a tile of keys row by row, with zeros for invisible keys. address(c, row, piece) is the destination
// of a piece of 8 columns, starting at column 64·c + 8·piece. Called by one warp.
template <class S, class Address>
__device__ __forceinline__ void copy_keys(Address&& address, const AttentionCall& x,
                                          decoding::LatentRowAddress& place, int row0, KeyRange seen) {
  constexpr int rows = 4;  // rows copied together; a lane copies every eighth 16-byte piece of one row
  const int row_of_lane = lane_id() / 8, piece = lane_id() % 8;
#pragma unroll 1
  for (int half = 0; half < tile_keys; half += 32) {
    place.look_up(x, row0 + half + lane_id(), seen);
    const u32 begin = place.begin<S>(x, x.k);
#pragma unroll 1
    for (int n = 0; n < 32; n += rows) {
      const int row = half + n + row_of_lane, key = row0 + row;
      const bool counts = key >= seen.from && key < seen.to;
      const S* const from = decoding::at_piece<S>(x.k, __shfl_sync(~0u, begin, n + row_of_lane) + piece);
#pragma unroll
      for (int c = 0; c < 9; ++c)
        ptx::cp_async_16(address(c, row, piece), from + c * 64, counts && piece * 8 + c * 64 < x.d ? 16 : 0);
    }
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::fence_async();
  __syncwarp();
}

// Merges the ranges of each query and head of a launch, with one block for each. A block reads four ranges at
// a time and needs few registers, so more blocks wait for memory concurrently.
template <class S>
__global__ void __launch_bounds__(most_values / 4)
    merge(const __grid_constant__ AttentionCall x, const __grid_constant__ Plan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::let_next_kernel_begin();
  if (!x.fixed_positions) ptx::wait_for_kernel_before();
  const int query = blockIdx.x / x.H, head = blockIdx.x % x.H, group = decoding::group_of(x),
            of_group = head % group, piece = of_group / decoding::most_heads,
            row = of_group % decoding::most_heads, at = plan.tiles.first + query,
            column = static_cast<int>(threadIdx.x) * 4;
  decoding::Item item{};
  item.tile.b = at / plan.queries, item.head = head / group, item.first_head = item.head * group;
  item.tile.row0 = at % plan.queries * group + piece * decoding::most_heads;
  const Partial range_0 = Partial{plan.o, plan.lse, decoding::heads_of_piece(x), x.dv}.after(
      place_of(x, plan, query, item.head * plan.pieces + piece, 0));
  const KeyRange keys = keys_of(x, plan, query);
  const int first = plan.ranges.of(keys.from),
            end = keys.from < keys.to ? plan.ranges.of(keys.to - 1) + 1 : first;
  ptx::wait_for_kernel_before();
  if (column >= x.dv) return;
  decoding::put<S>(x, item, row, column,
                   decoding::merge_ranges<4>(range_0, first, end, row, column, units_of(x).exponent));
#endif
}

// Number of rows in a box of keys. It is the largest number that divides both a page and a tile, or 0 if this
// number is less than 8.
inline int box_rows_of(const AttentionCall& x) {
  const int rows = x.table ? std::gcd(x.page, tile_keys) : tile_keys;
  return rows < 8 ? 0 : rows;
}
// The plan of a call's launches, without the tensor map of keys and the queries of a launch. `item_rows` is
// the number of rows of a query tile.
inline Plan plan_of(const AttentionCall& x, const Workspace& work, int item_rows) {
  AttentionCall::TensorView q = x.q;  // [B, L, H, d]
  std::swap(q.head, q.row);
  Plan plan{{}, decoding::ranges_by_wgmma(x), {}, decoding::pieces_of(x), box_rows_of(x)};
  plan.q = tensor_map(x.type, q, x.B, x.L, x.H, x.d, item_rows);
  plan.taken = work.taken, plan.queries = x.L;
  plan.factor = static_cast<float>(factor_of(x)), plan.cap = static_cast<float>(cap_of(x));
  plan.parts = work.parts, plan.o = work.o, plan.lse = work.lse;
  return plan;
}
// Computes a call that is in_pages(). A block of the kernel has `threads` threads and `shared` bytes of
// shared memory. A merge follows each launch.
template <class S, class Kernel>
void launch_items(const Stream& s, const AttentionCall& x, Plan plan, unsigned threads, std::size_t shared,
                  Kernel kernel) {
  AttentionCall rows = x;
  rows.L = decoding::heads_of_piece(x), rows.sink = nullptr;  // the merge adds the sink
  for (int n = 0; plan.tiles = decoding::queries_of_launch(x, n), plan.tiles.count > 0; ++n) {
    const i64 items = i64{plan.tiles.count} * x.Hk * plan.pieces * plan.parts;
    launch_early(s, {blocks_for(std::min<i64>(items, s.gpu.processors), 1), threads, shared}, kernel, rows,
                 plan, s.faults);
    launch_early(s, {blocks_for(i64{plan.tiles.count} * x.H, 1), most_values / 4}, merge<S>, x, plan);
  }
}

}  // namespace tg::cuda::attention::latents_sm90
