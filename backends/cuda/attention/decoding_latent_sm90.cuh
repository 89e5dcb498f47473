// Decoding of latents by wgmma, where many heads share a key: the roles of forward_576_sm90.cuh, with items
// of their own. An item is a range of the keys that one query sees, for up to 64 heads of it. So all rows of
// a tile see the same keys, and no bit of a row depends on other queries, nor on which block computes a
// range.
//
// Keys lie in pages, of which each tile of 64 takes several boxes of a tensor map; or in one piece, which is
// one page for each text (in_pages()). Each range leaves O and ξ, which a second kernel merges.
#pragma once

#include <numeric>

#include "backends/cuda/attention/checks.cuh"
#include "backends/cuda/attention/decoding_loader.cuh"
#include "backends/cuda/attention/decoding_merge.cuh"
#include "backends/cuda/attention/forward_576_sm90.cuh"

namespace tg::cuda::attention::latents_sm90 {

using namespace tile;
using decoding::EqualRanges, decoding::Partial;
using At = forward_576_sm90::Shape<true>;
// Warps that find pages need more registers than those that copy tiles of one tensor, the scorer fewer than
// it has at launch.
constexpr int producer_registers = 48, scorer_registers = 112;
static_assert(producer_registers + scorer_registers + 2 * At::adder_registers <= 512);

// The kernel's `x` has in L the rows of an item, and `queries` are those of a text.
struct Plan : forward_sm90::Plan {
  EqualRanges ranges;
  decoding::Tiles tiles;  // queries of the texts that the launch computes
  int pieces;             // of the heads that share a key head
  int box_rows;           // of keys; 0: pages have too few rows, which are copied one by one
};

// Where results of a range go, of a query of the launch and the nth piece of all heads.
__device__ __forceinline__ int place_of(const AttentionCall& x, const Plan& plan, int query, int nth,
                                        int range) {
  return (query * x.Hk * plan.pieces + nth) * plan.parts + range;
}

struct Item : forward_sm90::Item<1> {
  int query;  // of its text; h is the item's first head
};
struct Shared : forward_576_sm90::Shared<At, Item> {
  using Base = forward_576_sm90::Shared<At, Item>;
  static constexpr int handed_on = aligned(Base::bytes, 8), bytes = handed_on + Ring<At::k_stages>::bytes;
  static_assert(bytes <= 227 << 10);
  // Tiles of keys whose stage is empty and which the second loader fills: the nth that it does.
  __device__ Ring<At::k_stages> ring_handed_on() const { return {base + handed_on}; }
  __device__ void init() const { ring_handed_on().init(1), Base::init(2); }
};

// Keys of the nth query of a launch.
__device__ __forceinline__ KeyRange keys_of(const AttentionCall& x, const Plan& plan, int nth) {
  AttentionCall one = x;
  one.L = plan.queries;
  const int at = plan.tiles.first + nth;
  return keys_of_query(one, at / plan.queries, at % plan.queries);
}

// Finds items, by a warp: first all ranges but the last of each query, then the last ones, which may be
// short. Pieces of heads of a range are neighbours.
struct Items {
  const AttentionCall& x;
  const Plan& plan;
  const int each;                       // items of a range
  int pass = 0, query = 0, before = 0;  // queries that the lanes look at, from there on; items before these
  int nth = 0, range = 0;               // of the item found: piece of all heads, and range
  KeyRange keys{};                      // of its query

  // Item n, no earlier one than the one found before; false if there are no more.
  __device__ __forceinline__ bool find(int n) {
#pragma unroll 1
    while (pass < 2) {
      const bool there = query + lane_id() < plan.tiles.count;
      const KeyRange seen = there ? keys_of(x, plan, query + lane_id()) : KeyRange{0, 0};
      const bool some = seen.from < seen.to;
      const int first = plan.ranges.of(seen.from), last = some ? plan.ranges.of(seen.to - 1) : first,
                own = each * (pass == 0 ? last - first : some);
      int up_to = own;
#pragma unroll
      for (int by = 1; by < 32; by *= 2) {
        const int other = __shfl_up_sync(~0u, up_to, by);
        if (lane_id() >= by) up_to += other;
      }
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

// The warp that prepares items of work.
__device__ __forceinline__ void schedule(const Shared& shared, const AttentionCall& x, const Plan& plan) {
  Items work{x, plan, x.Hk * plan.pieces};
#pragma unroll 1
  for (u32 items = 0, n = blockIdx.x;; ++items) {
    shared.ring_items().acquire(items);
    Item& item = shared.item_of(items);
    const bool more = work.find(static_cast<int>(n));
    if (more) {
      const int from = static_cast<int>(plan.ranges.begin(work.range)), to = from + plan.ranges.each,
                at = plan.tiles.first + work.found;
      const KeyRange keys{max(work.keys.from, from), min(work.keys.to, to)};
#pragma unroll
      for (int row = 0; row < At::queries; row += 32)
        item.seen.first[row + lane_id()] = keys.from, item.seen.last[row + lane_id()] = keys.to;
      if (lane_id() == 0) {
        item.b = at / plan.queries, item.query = at % plan.queries, item.i0 = 0, item.sink = -INFINITY;
        item.h =
            work.nth / plan.pieces * decoding::group_of(x) + work.nth % plan.pieces * decoding::most_heads;
        item.some = item.every[0] = keys, item.range = {keys, At::keys};
      }
    }
    if (lane_id() == 0) item.batch_head = more ? place_of(x, plan, work.found, work.nth, work.range) : -1;
    __syncwarp();
    if (lane_id() == 0) shared.ring_items().announce(items);
    if (!more) break;
    n = __reduce_add_sync(~0u, lane_id() == 0 ? gridDim.x + atomicAdd(&plan.taken->items, 1) : 0);
  }
  if (lane_id() == 0) plan.taken->leave();
}

// What the warps that load tiles read of an item.
struct Source {
  decoding::PlaceOfLatent place{};  // text and key head; of a tile, what a lane has looked up
  int head, query;
  KeyRange some;
  Tiles range;

  __device__ __forceinline__ Source(const Item& item, const AttentionCall& x)
      : head(item.h), query(item.query), some(item.some), range(item.range) {
    place.b = item.b, place.head = head / decoding::group_of(x);
  }
  // Whether rows of a tile that count are copied one by one: memory of other keys may hold anything.
  __device__ __forceinline__ bool by_rows(const Plan& plan, int tile) const {
    return plan.box_rows == 0 || !covers(some, tile * At::keys, At::keys);
  }
};

// f(source, items before it) for each item of the block; by a warp that loads tiles.
template <class F>
__device__ __forceinline__ void each_item(const Shared& shared, const AttentionCall& x, F&& f) {
#pragma unroll 1
  for (u32 items = 0;; ++items) {
    shared.ring_items().wait(items);
    const Item& item = shared.item_of(items);
    if (__reduce_max_sync(~0u, item.batch_head) < 0) return;
    Source from(item, x);
    shared.ring_items().release(items);
    f(from, items);
  }
}

// A third of a tile of keys, in boxes, of which each lane knows where one is; by a warp.
template <class Tile>
__device__ __forceinline__ void load_keys(Tile to, const Plan& plan, u32 barrier,
                                          const decoding::Place& place, int column0) {
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

// The warp that copies tiles of queries, and those of keys that lie in whole boxes.
__device__ __forceinline__ void load(const Shared& shared, const AttentionCall& x, const Plan& plan) {
  using forward_576_sm90::third, forward_576_sm90::Third;
  // To be filled by the first lane.
  const auto expect = [](auto to, auto ring, u32 use) {
    __syncwarp();  // all lanes have seen the stage empty: once it is filled, consumers may empty it again
    if (lane_id() == 0) ring.expect(use, to.bytes);
  };
  u32 tiles = 0, handed_on = 0;
  each_item(shared, x, [&](Source& from, u32 items) {
    shared.ring_q().acquire(items);
#pragma unroll 1
    for (int j = from.range.to - 1; j >= from.range.from; --j, ++tiles) {
      const bool by_rows = from.by_rows(plan, j);
      const int row0 = j * At::keys;
      if (!by_rows) from.place.look_up(x, row0 + lane_id() * plan.box_rows, {row0, row0 + At::keys});
      shared.ring_k().acquire(tiles);
      if (by_rows) shared.ring_handed_on().announce_by_warp(handed_on++);
#pragma unroll 1
      for (int n = 0; n < At::thirds; ++n) {
        const int column0 = n * Third<At::K>::columns;
        if (j == from.range.to - 1) {
          const auto to = third(shared.tile_q(), n);
          expect(to, shared.ring_q(n), items);
          if (lane_id() == 0)
            load_boxes(to, plan.q, shared.ring_q(n).full(items), from.head, from.query, from.place.b,
                       column0);
        }
        if (by_rows) continue;
        const auto to = third(shared.tile_k(tiles), n);
        expect(to, shared.ring_k(n), tiles);
        load_keys(to, plan, shared.ring_k(n).full(tiles), from.place, column0);
      }
    }
  });
}

// A tile of keys row by row, with zeros for those that are not seen; by a warp.
template <class S>
__device__ __forceinline__ void copy_keys(At::K to, const AttentionCall& x, decoding::PlaceOfLatent& place,
                                          int row0, KeyRange seen) {
  constexpr int rows = 4;  // that the lanes copy at a time, a lane every eighth piece of 16 bytes of one
  const int row_of_lane = lane_id() / 8, piece = lane_id() % 8;
#pragma unroll 1
  for (int half = 0; half < At::keys; half += 32) {
    place.look_up(x, row0 + half + lane_id(), seen);
    const u32 begin = place.begin<S>(x, x.k);
#pragma unroll 1
    for (int n = 0; n < 32; n += rows) {
      const int row = half + n + row_of_lane, key = row0 + row;
      const bool counts = key >= seen.from && key < seen.to;
      const S* const from = decoding::at_piece<S>(x.k, __shfl_sync(~0u, begin, n + row_of_lane) + piece);
      const u32 address = to.base + At::K::offset(row, piece);
#pragma unroll
      for (int c = 0; c < At::K::blocks; ++c)
        ptx::cp_async_16(address + c * At::K::block, from + c * 64,
                         counts && piece * 8 + c * 64 < x.d ? 16 : 0);
    }
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  ptx::fence_async();
  __syncwarp();
}

// The warp that copies the other tiles of keys.
template <class S>
__device__ __forceinline__ void load_by_rows(const Shared& shared, const AttentionCall& x, const Plan& plan) {
  u32 tiles = 0, handed_on = 0;
  each_item(shared, x, [&](Source& from, u32) {
#pragma unroll 1
    for (int j = from.range.to - 1; j >= from.range.from; --j, ++tiles) {
      if (!from.by_rows(plan, j)) continue;
      shared.ring_handed_on().wait(handed_on++);
      copy_keys<S>(shared.tile_k(tiles), x, from.place, j * At::keys, from.some);
      if (lane_id() < At::thirds) shared.ring_k(lane_id()).announce(tiles);
    }
  });
}

template <class S>
__global__ void __launch_bounds__(At::threads, 1)
    attend(const __grid_constant__ AttentionCall x, const __grid_constant__ Plan plan, Faults faults) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TG_DYNAMIC_SHARED(memory, 1024);
  const Shared shared{{memory}};
  ptx::let_next_kernel_begin();
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  ptx::wait_for_kernel_before();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), row = static_cast<int>(threadIdx.x / 32 % 4) * 16;
  using namespace forward_576_sm90;
  if (group == 0) {
    ptx::give_registers<producer_registers>();
    if (threadIdx.x < 32)
      latents_sm90::load(shared, x, plan);
    else if (threadIdx.x < 64)
      latents_sm90::schedule(shared, x, plan);
    else if (threadIdx.x < 96)
      load_by_rows<S>(shared, x, plan);
    else if (plan.tiles.first == 0)
      check_places(x, faults, lane_id(), 32);
  } else if (group == 1) {
    ptx::give_registers<scorer_registers>();
    Scorer<S, At, latents_sm90::Shared>{shared, x, plan, row}.run();
  } else {
    ptx::take_registers<At::adder_registers>();
    using Sums = Adder<S, At, latents_sm90::Shared>;
    Sums{shared, x, plan, row, (group - 2) * Sums::columns}.run();
  }
#endif
}

// The ranges of each query and head of a launch, a block for each: four at a time, with few registers, so
// that many blocks wait for memory at once.
template <class S>
__global__ void __launch_bounds__(At::V::columns / 4)
    merge(const __grid_constant__ AttentionCall x, const __grid_constant__ Plan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::wait_for_kernel_before();
  const int query = blockIdx.x / x.H, head = blockIdx.x % x.H, group = decoding::group_of(x),
            of_group = head % group, piece = of_group / decoding::most_heads,
            row = of_group % decoding::most_heads, at = plan.tiles.first + query,
            column = static_cast<int>(threadIdx.x) * 4;
  if (column >= x.dv) return;
  decoding::Item item{};
  item.tile.b = at / plan.queries, item.head = head / group, item.first_head = item.head * group;
  item.tile.row0 = at % plan.queries * group + piece * decoding::most_heads;
  const Partial range_0 = Partial{plan.o, plan.lse, decoding::heads_of_piece(x), x.dv}.after(
      place_of(x, plan, query, item.head * plan.pieces + piece, 0));
  const KeyRange keys = keys_of(x, plan, query);
  const int first = plan.ranges.of(keys.from),
            end = keys.from < keys.to ? plan.ranges.of(keys.to - 1) + 1 : first;
  decoding::put<S>(x, item, row, column,
                   decoding::merge_ranges<4>(range_0, first, end, row, column, static_cast<float>(log2_e)));
#endif
}

template <class S>
void launch(const Stream& s, const AttentionCall& call, const Workspace& work) {
  const AttentionCall x = decoding::in_pages(call);
  AttentionCall rows = x;
  rows.L = decoding::heads_of_piece(x), rows.sink = nullptr;  // a sink is merged, too
  AttentionCall::Operand q = x.q;                             // [B, L, H, d]
  std::swap(q.head, q.row);
  const int box = x.table ? std::gcd(x.page, At::keys) : At::keys, box_rows = box < 8 ? 0 : box;
  Plan plan{{}, decoding::ranges_by_wgmma(x), {}, decoding::pieces_of(x), box_rows};
  plan.q = tensor_map(x.type, q, x.B, x.L, x.H, x.d, At::queries);
  if (box_rows > 0) plan.k = tensor_map(x.type, x.k, x.pool, x.Hk, x.page, x.d, box_rows);
  plan.taken = work.taken, plan.queries = x.L;
  plan.factor = static_cast<float>(factor_of(x)), plan.cap = static_cast<float>(cap_of(x));
  plan.parts = work.parts, plan.o = work.o, plan.lse = work.lse;
  for (int n = 0; plan.tiles = decoding::queries_of_launch(x, n), plan.tiles.count > 0; ++n) {
    const i64 items = i64{plan.tiles.count} * x.Hk * plan.pieces * plan.parts;
    LaunchShape shape{blocks_for(std::min<i64>(items, s.gpu.processors), 1), At::threads,
                      static_cast<std::size_t>(Shared::bytes)};
    shape.early = true;
    launch_kernel(s, shape, attend<S>, rows, plan, s.faults);
    LaunchShape merging{blocks_for(i64{plan.tiles.count} * x.H, 1), At::V::columns / 4};
    merging.early = true;
    launch_kernel(s, merging, merge<S>, x, plan);
  }
}

}  // namespace tg::cuda::attention::latents_sm90
