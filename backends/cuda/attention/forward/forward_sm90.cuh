// The forward on Hopper (FlashAttention-3) [Stratos, FlashAttention §D]. Blocks are persistent and process
// work items, each some queries of a head. A block is warp-specialized. One warp prepares items, and two
// warps load tiles by TMA: one loads queries, the other keys and values. The consumers are warpgroups of 64
// queries each. They use wgmma and alternate (ping-pong): while one warpgroup computes its softmax, another
// warpgroup multiplies.
//
//   c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum, G ← exp(c_old − c)·G + exp(A − c)·V
//   O = G ⊘ π, ξ = c + log π
#pragma once

#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/shapes_sm90.h"
#include "backends/cuda/attention/stages/epilogue.cuh"
#include "backends/cuda/attention/stages/key_source_sm90.cuh"
#include "backends/cuda/attention/stages/schedule.cuh"
#include "backends/cuda/attention/stages/softmax.cuh"
#include "backends/cuda/attention/stages/visible_keys.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/tile/mma_sm90.cuh"
#include "backends/cuda/tile/pipeline_sm90.cuh"

namespace tg::cuda::attention::forward_sm90 {

using namespace tile;

// Kernel parameters that the host computes for a call.
struct Plan {
  CUtensorMap q, k, v, to;  // `to`: o, in boxes of a warp's rows
  Sections sections;
  Taken* taken;          // null: items are distributed in a fixed order
  float factor, cap;     // as in Score
  float2 unit;           // the value of one unit of c (unit_of_exponents)
  const Powers* powers;  // of split operands
  // For a Divided shape. `queries` is L of the original call. x.L may include several heads
  // (with_heads_as_rows). `parts` is the number of parts of the keys, each a separate item. The parts'
  // results are [parts, B, H, L, dv] and {c, π} [parts, B, H, L]. They are null if results are stored to the
  // call's outputs.
  int queries, parts;
  float* o;
  float2* lse;
};

// A work item: some queries of a head, and the keys that these queries see, or a part of these keys.
template <int groups>
struct Item {
  // Index into the result heads [parts, B, H]; < 0: no more items.
  int batch_head;
  int b, h, i0;
  float sink;     // −∞: none
  KeyRange some;  // keys that at least one query sees
  // Tiles with visible keys. `range` covers all queries of the item and is loaded. `own` covers the queries
  // of a warpgroup and is empty if it has no queries.
  Tiles range, own[groups];
  KeyRange every[groups];  // keys that all queries of the warpgroup see
  VisibleKeys<64 * groups> seen;
};

template <class At>
struct Shared {
  static constexpr int k = At::query_stages * At::groups * At::Q::bytes, v = k + At::stages * At::K::bytes,
                       q_ring = v + At::stages * At::V::bytes,
                       k_ring = q_ring + At::groups * Ring<At::query_stages>::bytes,
                       v_ring = k_ring + Ring<At::stages>::bytes,
                       item_ring = v_ring + Ring<At::stages>::bytes,
                       item = item_ring + Ring<At::items>::bytes,
                       bytes = item + At::items * int(sizeof(Item<At::groups>));
  unsigned char* start;
  u32 base = shared_address(start);

  __device__ typename At::Q tile_q(int warpgroup, u32 use) const {
    return {base + (Ring<At::query_stages>::stage(use) * At::groups + warpgroup) * At::Q::bytes};
  }
  __device__ typename At::K tile_k(u32 use) const {
    return {base + k + Ring<At::stages>::stage(use) * At::K::bytes};
  }
  __device__ typename At::V tile_v(u32 use) const {
    return {base + v + Ring<At::stages>::stage(use) * At::V::bytes};
  }
  __device__ Ring<At::query_stages> ring_q(int warpgroup) const {
    return {base + q_ring + warpgroup * Ring<At::query_stages>::bytes};
  }
  __device__ Ring<At::stages> ring_k() const { return {base + k_ring}; }
  __device__ Ring<At::stages> ring_v() const { return {base + v_ring}; }
  __device__ Ring<At::items> ring_items() const { return {base + item_ring}; }
  __device__ Item<At::groups>& item_of(u32 use) const {
    return reinterpret_cast<Item<At::groups>*>(start + item)[Ring<At::items>::stage(use)];
  }
  __device__ void init() const {
    for (int g = 0; g < At::groups; ++g) ring_q(g).init(4);
    ring_k().init(4 * At::groups), ring_v().init(4 * At::groups), ring_items().init(4 * At::groups + 2);
    ptx::fence_mbarrier_init();
  }
};

// Determines which keys an item's queries see; called by one warp. Without packed sequences, the first and
// last query of each warpgroup are enough. Otherwise every query is examined.
template <class At, class Item>
__device__ __forceinline__ void see_keys(Item& item, const AttentionCall& x, const Plan& plan,
                                         TilePosition at, int part) {
  const bool heads_as_rows = At::divided && plan.queries < x.L, in_parts = At::divided && plan.parts > 1;
  const int rows = min(At::queries, x.L - at.row0);
  KeyRange some{INT_MAX, 0};
  if (At::may_be_whole && !x.cu_q && !heads_as_rows && !in_parts) {
    const Band band(x, sequence_of_query(x, at.b, at.row0));
    item.seen.set(band, at.row0, rows);
    some = band.some_of(at.row0, at.row0 + rows - 1);
    const int first = at.row0 + 64 * lane_id(), last = min(first + 64, at.row0 + rows) - 1;
    if (lane_id() < At::groups) {
      item.own[lane_id()] = {first <= last ? band.some_of(first, last) : KeyRange{0, 0}, At::keys};
      item.every[lane_id()] = band.every_of(first, last);
    }
  } else {
    if (heads_as_rows)
      item.seen.set_of_heads(x, at.b, at.row0, plan.queries);
    else
      item.seen.set(x, at.b, at.row0, lane_id(), 32);
    __syncwarp();
    if (in_parts) {
      const Tiles all(item.seen.unite(0, rows).some, At::keys);
      item.seen.keep(keys_of_part(all, At::keys, part, plan.parts));
      __syncwarp();
    }
#pragma unroll 1
    for (int g = 0; g < At::groups; ++g) {
      const auto [own, every] = item.seen.unite(64 * g, min(64 * g + 64, rows));
      if (own.from < own.to) some = {min(some.from, own.from), max(some.to, own.to)};
      if (lane_id() == 0) item.own[g] = {own, At::keys}, item.every[g] = every;
    }
  }
  __syncwarp();
  if (lane_id() > 0) return;
  // Queries without visible keys still process one tile, whose keys are all masked.
  if (some.from >= some.to) some = {1, 1};
  item.some = some, item.range = {some, At::keys};
  for (int g = 0; g < At::groups && 64 * g < rows; ++g)
    if (item.own[g].from >= item.own[g].to) item.own[g] = {{some.from, some.from + 1}, At::keys};
}

// Scheduler warp: fetches the next work item and determines which keys its queries see.
template <class S, class At, class Memory>
__device__ __forceinline__ void schedule(const Memory& shared, const AttentionCall& x, const Plan& plan) {
  const u32 parts = At::divided ? plan.parts : 1;
#pragma unroll 1
  for (u32 items = 0, n = blockIdx.x;; ++items) {
    shared.ring_items().acquire(items);
    auto& item = shared.item_of(items);
    const bool last = n >= plan.sections.all() * parts;
    const TilePosition at = plan.sections.place(last ? 0 : n / parts, true);
    const int part = n % parts;
    if (!last) see_keys<At>(item, x, plan, at, part);
    if (lane_id() == 0) {
      item.batch_head = last ? -1 : part * plan.sections.all_heads + at.batch_head;
      item.b = at.b, item.h = at.head, item.i0 = at.row0;
      item.sink = x.sink ? widen(static_cast<const Result<S, At>*>(x.sink)[at.head]) : -INFINITY;
    }
    __syncwarp();
    if (lane_id() == 0) shared.ring_items().announce(items);
    if (last) break;
    n += gridDim.x;
    if (plan.taken)
      n = __reduce_add_sync(~0u, lane_id() == 0 ? gridDim.x + atomicAdd(&plan.taken->items, 1) : 0);
  }
  if (plan.taken && lane_id() == 0) plan.taken->leave();
}

// Starts filling a stage by TMA; called by one warp.
__device__ __forceinline__ void fill(auto to, const CUtensorMap& map, auto ring, u32 use, int row0, int head,
                                     int batch, int column0 = 0) {
  __syncwarp();  // all lanes saw the empty stage; once it is filled, consumers may empty it again
  if (lane_id() > 0) return;
  ring.expect(use, to.bytes);
  load_boxes(to, map, ring.full(use), row0, head, batch, column0);
}

// Makes the compiler treat a value as warp-uniform.
__device__ __forceinline__ int uniform(int n) {
  return __reduce_max_sync(~0u, n);
}
__device__ __forceinline__ Tiles uniform(const Tiles& t) {
  return {uniform(t.from), uniform(t.to)};
}

// Calls f(source, index) for each item of the block; called by one warp. `source` is a copy of the fields
// that loading warps read. The loading warps therefore do not hold the item's stage.
struct Source {
  int b, h, i0;
  KeyRange some;
  Tiles range;
};
__device__ __forceinline__ void for_each_item(const auto& shared, auto&& f) {
#pragma unroll 1
  for (u32 items = 0;; ++items) {
    shared.ring_items().wait(items);
    const auto& item = shared.item_of(items);
    if (uniform(item.batch_head) < 0) return;
    const Source source{item.b, item.h, item.i0, item.some, item.range};
    shared.ring_items().release(items);
    f(source, items);
  }
}

// Query-loading warp. It starts the first item's queries before the scheduler warp knows which keys they see.
template <class At>
__device__ __forceinline__ void load_queries(const Shared<At>& shared, const Plan& plan) {
  const auto load = [&](u32 n, int b, int h, int i0) {
#pragma unroll 1
    for (int g = 0; g < At::groups; ++g) {
      shared.ring_q(g).acquire(n);
      fill(shared.tile_q(g, n), plan.q, shared.ring_q(g), n, i0 + 64 * At::group(g, n), h, b);
    }
  };
  const TilePosition first = plan.sections.place(blockIdx.x / (At::divided ? plan.parts : 1), true);
  load(0, first.b, first.head, first.row0);
  for_each_item(shared, [&](const Source& item, u32 n) {
    if (n > 0) load(n, item.b, item.h, item.i0);
  });
}

// Key- and value-loading warp.
template <class S, class At>
__device__ __forceinline__ void load(const Shared<At>& shared, const AttentionCall& x, const Plan& plan) {
  const bool some_only = x.lengths || x.cu_k;  // memory of other keys may contain anything
  u32 tiles = 0;
  for_each_item(shared, [&](const Source& item, u32) {
    const auto [b, h, i0, some, range] = item;
    const int key_head = h / (x.H / x.Hk);
    // The values of a tile are needed one step after the keys of this tile.
#pragma unroll 1
    for (int j = range.to - 1; j >= range.from - 1; --j, ++tiles) {
      if (j >= range.from) {
        shared.ring_k().acquire(tiles);
        fill(shared.tile_k(tiles), plan.k, shared.ring_k(), tiles, j * At::keys, key_head, b);
      }
      if (j < range.to - 1) {
        const int row0 = (j + 1) * At::keys;
        shared.ring_v().acquire(tiles - 1);
        if (some_only && !covers(some, row0, At::keys)) {
          copy_rows(shared.tile_v(tiles - 1), x.v.at<S>(b, key_head), x.v.row, row0, some,
                    size_in_memory<At>(x.v, x.dv));
          if (lane_id() == 0) shared.ring_v().announce(tiles - 1);
        } else {
          fill(shared.tile_v(tiles - 1), plan.v, shared.ring_v(), tiles - 1, row0, key_head, b);
        }
      }
    }
    --tiles;
  });
}

// The sink of row i of an item's head. It belongs to the first part of the keys.
template <class S, class At, class Item>
__device__ __forceinline__ float sink_of(const AttentionCall& x, const Plan& plan, const Item& item, int i) {
  if (!At::divided || !x.sink) return item.sink;
  if (item.batch_head >= plan.sections.all_heads || i >= x.L) return -INFINITY;
  const int heads = x.L / plan.queries;  // query heads flattened into one head of the kernel
  return widen(static_cast<const S*>(x.sink)[item.h * heads + i / plan.queries]);
}
// Destination of an item's results: head (b, h) of the call's outputs, or head batch_head of the parts.
template <class R, class At>
struct Destination {
  const AttentionCall& x;
  const Plan& plan;
  int batch_head, b, h;

  __device__ __forceinline__ bool is_part() const { return At::divided && plan.o; }
  __device__ __forceinline__ LseRows lse() const {
    const i64 row = i64{batch_head} * x.L;
    return is_part() ? LseRows{nullptr, nullptr, plan.lse + row} : lse_of_call(x, row);
  }
  // Stores columns column0 … of O, for a warp's queries i0 ….
  __device__ __forceinline__ void take(auto& from, int i0, int column0 = 0) const {
    if (is_part())
      store(from, plan.o + i64{batch_head} * x.L * x.dv + column0, x.dv, i0, x.L, x.dv - column0);
    else
      store(from, x.o.template at<R>(b, h) + column0, x.o.row, i0, x.L, x.dv - column0);
  }
};

// A consumer warpgroup with 64 queries. Operands have type S, or are f32 elements split into values of type
// S.
template <class S, class At, Options options>
struct Consumer {
  using T = Terms<S, At::terms>;
  using Scores = Accumulator<16, At::keys>;
  static constexpr int D = At::D, DV = At::DV;
  const Shared<At>& shared;
  const AttentionCall& x;
  const Plan& plan;
  int warpgroup;
  u32 tiles = 0, items = 0;

  // Which 64 queries of the item this warpgroup computes.
  __device__ __forceinline__ int group() const { return At::group(warpgroup, items); }
  // The warp's first row among these queries.
  __device__ __forceinline__ static int row() { return static_cast<int>(threadIdx.x / 32 % 4) * 16; }

  // A warpgroup issues its GEMMs after the previous warpgroup has issued its own.
  static constexpr int first_token = 1;
  __device__ __forceinline__ void take_turn() const {
    if constexpr (At::takes_turns) ptx::bar_sync(first_token + warpgroup, 256);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (At::takes_turns)
      ptx::bar_arrive(first_token + (warpgroup + 1 < At::groups ? warpgroup + 1 : 0), 256);
  }
  // Skips tiles that only other warpgroups need.
  __device__ __forceinline__ void pass_by(int count) {
#pragma unroll 1
    for (; count > 0; --count, ++tiles) {
      take_turn();
      pass_turn();
      shared.ring_k().wait(tiles), shared.ring_k().release(tiles);
      shared.ring_v().wait(tiles), shared.ring_v().release(tiles);
    }
  }

  // Issues S = Q·Kᵀ of the next tile.
  __device__ __forceinline__ void begin_scores(Scores& s) const {
    begin_f16_split_ABt<T, D>(s, shared.tile_q(warpgroup, items), 0, shared.tile_k(tiles));
  }

  // Waits until item n is known. Returns whether it exists.
  __device__ __forceinline__ bool wait_for_item(u32 n) const {
    shared.ring_items().wait(n);
    return uniform(shared.item_of(n).batch_head) >= 0;
  }

  __device__ __forceinline__ void run() {
    if (warpgroup == At::groups - 1) pass_turn();
    if (!wait_for_item(0)) return;
    Scores s;
    if constexpr (At::begins_early) {
      begin_item(s);
      wait_for_products<0>();
      keep(s);
    }
    bool more;
#pragma unroll 1
    do {
      const auto& item = shared.item_of(items);
      const Tiles range = uniform(item.range), own = At::own_keys ? uniform(item.own[group()]) : range;
      more = !At::own_keys || own.from < own.to ? attend(s, range, own) : pass_by_item(range);
    } while (more);
    if (lane_id() == 0) ptx::wait_for_stores();
  }
  // Issues S of an item's last tile, which is processed first.
  __device__ __forceinline__ void begin_item(Scores& s) const {
    shared.ring_q(warpgroup).wait(items);
    shared.ring_k().wait(tiles);
    take_turn();
    begin_scores(s);
    pass_turn();
  }
  // Releases the item's tile of Q after its last GEMM. If O is stored through that tile, releases the tile of
  // the previous item instead.
  __device__ __forceinline__ void release_queries() const {
    if constexpr (At::stores_boxes) {
      if (items == 0) return;
      if (lane_id() == 0) ptx::wait_for_stores();
      shared.ring_q(warpgroup).release(items - 1);
    } else {
      shared.ring_q(warpgroup).release(items);
    }
  }
  // Skips an item in which the warpgroup has no queries. Returns whether there is another item.
  __device__ __forceinline__ bool pass_by_item(Tiles range) {
    shared.ring_q(warpgroup).wait(items);
    release_queries();
    shared.ring_items().release(items);
    pass_by(range.to - range.from);
    return wait_for_item(++items);
  }
  // Scaling exponents of an item with split operands.
  __device__ __forceinline__ const Powers& powers(const Item<At::groups>& item) const {
    return plan.powers[item.b * x.Hk + item.h / (x.H / x.Hk)];
  }
  // Processes one item and returns whether there is another. If items begin early, `s` contains the item's
  // first S. The first S of the next item is then computed while results are stored.
  __device__ __forceinline__ bool attend(Scores& s, Tiles range, Tiles own) {
    const auto& item = shared.item_of(items);
    const KeyRange every = item.every[group()];
    float unit = 1;  // of q·k
    if constexpr (At::split) unit = power_of_two(-powers(item).q - powers(item).k);
    const Score<S> score(plan.factor * unit, plan.cap);
    const bool plain = options == none || score.is_plain();
    OnlineSoftmax<16, !At::split> softmax(
        [&](int i) { return sink_of<S, At>(x, plan, item, item.i0 + 64 * group() + row() + i); },
        plain ? score.factor : 1, plain ? static_cast<float>(x.scale) * unit : static_cast<float>(ln_2));
    SumOfProducts<T, DV> o;
    o.all.fill(0);
    PackedF16Split<T, At::keys> p;
    // Converts q·k of tile j to P = exp(A − c). Returns whether c changed.
    const auto soften = [&](int j) {
      const int j0 = j * At::keys;
      if (!plain) score.template apply<!At::split>(s);
      if (!covers(every, j0, At::keys)) mask(s, item.seen, 64 * group() + row(), 0, j0);
      return softmax.step(s);
    };
    const auto release_operands = [&](int j) {
      shared.ring_k().release(tiles);
      if (j == (At::stores_boxes ? own.to - 1 : own.from)) release_queries();
    };
    if constexpr (!At::begins_early) {
      pass_by(range.to - own.to);
      begin_item(s);
      wait_for_products<0>();
      keep(s);
    }
    release_operands(own.to - 1);
    soften(own.to - 1);
    pack<S>(p, s);
#pragma unroll 1
    for (int j = own.to - 2; j >= own.from; --j) {
      ++tiles;
      shared.ring_k().wait(tiles);
      take_turn();
      begin_scores(s);
      shared.ring_v().wait(tiles - 1);
      o.begin_AB(p, shared.tile_v(tiles - 1));  // G += P·V of the previous tile
      pass_turn();
      wait_for_products<products_of_f16_split<T>>();
      keep(s);
      release_operands(j);
      const bool moved = soften(j);
      wait_for_products<0>();
      o.end(), keep(p);
      shared.ring_v().release(tiles - 1);
      pack<S>(p, s);
      if (moved) softmax.rescale(o.all);
    }
    shared.ring_v().wait(tiles);
    o.begin_AB(p, shared.tile_v(tiles));
    const Destination<Result<S, At>, At> to{x, plan, item.batch_head, item.b, item.h};
    const int i0 = item.i0 + 64 * group() + row(), power = At::split ? powers(item).v : 0;
    const auto way_out = shared.tile_q(warpgroup, items);
    shared.ring_items().release(items);
    const auto end = [&](u32 last_tile) {
      o.end(), keep(p);
      shared.ring_v().release(last_tile);
      softmax.finish(o.all, to.lse(), i0, x.L, plan.unit);
      if constexpr (At::split) scale(o.all, 1, -power);
      if constexpr (At::stores_boxes) {
        ptx::bar_sync(first_token + At::groups + warpgroup, 128);  // no warp still reads the tile of Q
        store_boxes<S>(o.all, way_out, row(), plan.to, i0, to.h, to.b);
      } else {
        to.take(o.all, i0);
      }
    };
    if constexpr (At::begins_early) {
      const bool more = wait_for_item(items + 1);
      if (more) {
        ++items, ++tiles;
        begin_item(s);
        wait_for_products<products_of_f16_split<T>>();
        end(tiles - 1);
        wait_for_products<0>();
        keep(s);
      } else {
        wait_for_products<0>();
        end(tiles);
      }
      return more;
    }
    wait_for_products<0>();
    end(tiles++);
    pass_by(own.from - range.from);
    return wait_for_item(++items);
  }
};

template <class S, class At, Options options>
__global__ void __launch_bounds__(At::threads, At::blocks)
    attend(const __grid_constant__ AttentionCall x, const __grid_constant__ Plan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TG_DYNAMIC_SHARED(memory, 1024);
  const Shared<At> shared{memory};
  if (threadIdx.x == 0) shared.init();
  if (threadIdx.x == 32) ptx::prefetch(&plan.q), ptx::prefetch(&plan.k), ptx::prefetch(&plan.v);
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (group == 0) {
    ptx::give_registers<At::producer_registers>();
    if (threadIdx.x < 32)
      load<S>(shared, x, plan);
    else if (threadIdx.x < 64)
      schedule<S, At>(shared, x, plan);
    else if (threadIdx.x < 96)
      load_queries(shared, plan);
  } else {
    ptx::take_registers<At::consumer_registers>();
    Consumer<S, At, options>{shared, x, plan, group - 1}.run();
  }
#endif
}

// Launches a persistent kernel. Each block processes one item after the other. If items differ in length,
// blocks fetch them from an atomic counter. `x` is the result of with_heads_as_rows(), and `queries` is L of
// the original call.
template <class At, class Kernel>
void launch_items(const Stream& s, const AttentionCall& x, int queries, const Workspace& work,
                  std::size_t shared, Kernel kernel, const Powers* powers) {
  Sections sections{(x.L + At::queries - 1) / At::queries, 1, x.H, static_cast<int>(x.B) * x.H, At::queries};
  if (is_uneven(x)) {
    // With few keys and few queries per item, smaller sections mix items of different lengths. Some blocks
    // then read while others compute.
    const i64 cached = (At::queries <= 128 && x.T <= 512 ? 8 : 32) << 20;  // bytes
    const int numbers =                                                    // elements of a key and its value
        size_in_memory<At>(x.k, x.d) + (At::values_are_keys ? 0 : size_in_memory<At>(x.v, x.dv));
    const i64 head = i64{x.T} * numbers * 2,
              heads = std::max<i64>(cached / std::max<i64>(head, 1), 1) * (x.H / x.Hk);
    sections.together = static_cast<int>(std::min<i64>(heads, sections.all_heads));
  }
  const i64 all = i64{sections.blocks} * sections.all_heads * work.parts;
  const int grid = static_cast<int>(std::min<i64>(all, i64{s.gpu.processors} * At::blocks));
  if (grid == 0) return;
  Plan plan{tensor_map(x.type, x.q, x.B, x.H, x.L, size_in_memory<At>(x.q, x.d), 64),
            tensor_map(x.type, x.k, x.B, x.Hk, x.T, size_in_memory<At>(x.k, x.d), At::keys),
            tensor_map(x.type, x.v, x.B, x.Hk, x.T, size_in_memory<At>(x.v, x.dv), At::keys)};
  if constexpr (At::stores_boxes) plan.to = tensor_map(x.type, x.o, x.B, x.H, x.L, x.dv, 16);
  plan.sections = sections, plan.taken = is_uneven(x) && all > grid ? work.taken : nullptr;
  plan.factor = static_cast<float>(factor_of(x)), plan.cap = static_cast<float>(cap_of(x));
  plan.unit = unit_of_exponents(x), plan.powers = powers, plan.queries = queries;
  plan.parts = work.parts, plan.o = work.o, plan.lse = work.lse;
  launch_kernel(s, {static_cast<unsigned>(grid), At::threads, shared}, kernel, x, plan);
  if (work.parts > 1) launch_merge(s, x, work, At::by_scores);
}

}  // namespace tg::cuda::attention::forward_sm90
