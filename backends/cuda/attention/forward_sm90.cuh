// The forward on Hopper (FlashAttention-3) [Stratos, FlashAttention §D]: blocks stay on their multiprocessor
// and take one item of work after the other, some queries of a head. One warp prepares items, one
// copies tiles by TMA; warpgroups of 64 queries, the consumers, multiply by wgmma and take turns, so that
// one's softmax runs while another's products do.
//
//   c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum, G ← exp(c_old − c)·G + exp(A − c)·V
//   O = G ⊘ π, ξ = c + log π
#pragma once

#include "backends/cuda/attention/division_sm90.h"
#include "backends/cuda/attention/epilogue.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/key_source_sm90.cuh"
#include "backends/cuda/attention/schedule.cuh"
#include "backends/cuda/attention/shapes_sm90.h"
#include "backends/cuda/attention/softmax.cuh"
#include "backends/cuda/attention/tensor_map.h"
#include "backends/cuda/attention/visible_keys.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/tile/mma_sm90.cuh"
#include "backends/cuda/tile/pipeline_sm90.cuh"

namespace tg::cuda::attention::forward_sm90 {

using namespace tile;

// How work is divided into items, in words of the host. Only a Divided shape reads more than the first two.
struct Division {
  Sections sections;
  int* counter;    // of items that blocks have taken; null: each takes every gridDim-th
  int queries;     // of a head of the call; x.L may be those of several (with_heads_as_rows)
  int parts;       // of the keys of some queries: items of their own
  float *o, *lse;  // their results: [parts, B, H, L, dv], [parts, B, H, L]; null for one part
};

// Some queries of a head, and the keys that they see, or a part of these.
template <int groups>
struct Item {
  // Of the heads of all results, [parts, B, H], which it computes some rows of; < 0: there are no more.
  int batch_head;
  int b, h, i0;
  KeyRange some;                        // keys that some query sees: their tiles are loaded
  KeyRange own[groups], every[groups];  // that some, that every query of a warpgroup sees; own is empty if it
                                        // has no queries
  SeenKeys<64 * groups> seen;
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

  __device__ typename At::Q tile_q(int group, u32 use) const {
    return {base + (Ring<At::query_stages>::stage(use) * At::groups + group) * At::Q::bytes};
  }
  __device__ typename At::K tile_k(u32 use) const {
    return {base + k + Ring<At::stages>::stage(use) * At::K::bytes};
  }
  __device__ typename At::V tile_v(u32 use) const {
    return {base + v + Ring<At::stages>::stage(use) * At::V::bytes};
  }
  __device__ Ring<At::query_stages> ring_q(int group) const {
    return {base + q_ring + group * Ring<At::query_stages>::bytes};
  }
  __device__ Ring<At::stages> ring_k() const { return {base + k_ring}; }
  __device__ Ring<At::stages> ring_v() const { return {base + v_ring}; }
  __device__ Ring<At::items> ring_items() const { return {base + item_ring}; }
  __device__ Item<At::groups>& item_of(u32 use) const {
    return reinterpret_cast<Item<At::groups>*>(start + item)[Ring<At::items>::stage(use)];
  }
  __device__ void init() const {
    for (int g = 0; g < At::groups; ++g) ring_q(g).init(4);
    ring_k().init(4 * At::groups), ring_v().init(4 * At::groups), ring_items().init(4 * At::groups + 1);
    ptx::fence_mbarrier_init();
  }
};

// The warp that prepares items of work: takes the next one, and finds out which keys its queries see.
template <class At, class Memory>
__device__ __forceinline__ void schedule(const Memory& shared, const AttentionCall& x,
                                         const Division& division) {
#pragma unroll 1
  for (u32 items = 0, n = blockIdx.x;; ++items) {
    shared.ring_items().acquire(items);
    auto& item = shared.item_of(items);
    const int parts = At::divided ? division.parts : 1;
    const bool last = n >= static_cast<u32>(division.sections.all() * parts);
    if (!last) {
      int part = 0, nth = n;
      if (parts > 1) part = n % parts, nth = n / parts;
      const Place at = division.sections.place(nth, true);
      if (At::divided && division.queries < x.L)
        item.seen.set_of_heads(x, at.b, at.row0, division.queries);
      else
        item.seen.set(x, at.b, at.row0, lane_id(), 32);
      __syncwarp();
      if (parts > 1) {
        KeyRange all, every;
        item.seen.unite(min(64 * At::groups, x.L - at.row0), all, every);
        item.seen.keep(keys_of_part(Tiles(all, At::keys), At::keys, part, parts));
        __syncwarp();
      }
      KeyRange some{INT_MAX, 0};
#pragma unroll 1
      for (int g = 0; g < At::groups; ++g) {
        KeyRange own, every;
        item.seen.unite(64 * g, min(64 * g + 64, x.L - at.row0), own, every);
        if (own.from < own.to) some = {min(some.from, own.from), max(some.to, own.to)};
        if (lane_id() == 0) item.own[g] = own, item.every[g] = every;
      }
      if (lane_id() == 0) {
        // Queries that see nothing go through one tile all the same, none of whose values count.
        if (some.from >= some.to) some = {1, 1};
        for (int g = 0; g < At::groups && 64 * g < x.L - at.row0; ++g)
          if (item.own[g].from >= item.own[g].to) item.own[g] = {some.from, some.from + 1};
        item.some = some;
        item.b = at.b, item.h = at.head, item.i0 = at.row0;
        item.batch_head = part * division.sections.all_heads + at.batch_head;
      }
    }
    if (last && lane_id() == 0) item.batch_head = -1;
    __syncwarp();
    if (lane_id() == 0) shared.ring_items().announce(items);
    if (last) return;
    n += gridDim.x;
    if (division.counter)
      n = __reduce_add_sync(~0u, lane_id() == 0 ? gridDim.x + atomicAdd(division.counter, 1) : 0);
  }
}

// The warp that copies tiles.
template <class S, class At>
__device__ __forceinline__ void load(const Shared<At>& shared, const AttentionCall& x,
                                     const CUtensorMap& map_q, const CUtensorMap& map_k,
                                     const CUtensorMap& map_v) {
  const bool some_only = x.lengths || x.cu_k;  // memory of other keys may hold anything
  const auto fill = [](auto to, const CUtensorMap& map, auto ring, u32 use, int row0, int head, int batch) {
    __syncwarp();  // all lanes have seen the stage empty: once it is filled, consumers may empty it again
    if (lane_id() > 0) return;
    ring.expect(use, to.bytes);
    load_boxes(to, map, ring.full(use), row0, head, batch);
  };
  u32 tiles = 0, queries = 0;
#pragma unroll 1
  for (u32 items = 0;; ++items) {
    shared.ring_items().wait(items);
    const auto& item = shared.item_of(items);
    if (__reduce_max_sync(~0u, item.batch_head) < 0) return;
    const int b = item.b, h = item.h, i0 = item.i0, key_head = h / (x.H / x.Hk);
    const KeyRange some = item.some;
    shared.ring_items().release(items);
    const Tiles range(some, At::keys);
#pragma unroll 1
    for (int g = 0; g < At::groups; ++g) {
      shared.ring_q(g).acquire(queries);
      fill(shared.tile_q(g, queries), map_q, shared.ring_q(g), queries, i0 + 64 * g, h, b);
    }
    ++queries;
    // The values of a tile are needed a step after its keys.
#pragma unroll 1
    for (int j = range.to - 1; j >= range.from - 1; --j, ++tiles) {
      if (j >= range.from) {
        shared.ring_k().acquire(tiles);
        fill(shared.tile_k(tiles), map_k, shared.ring_k(), tiles, j * At::keys, key_head, b);
      }
      if (j < range.to - 1) {
        const int row0 = (j + 1) * At::keys;
        shared.ring_v().acquire(tiles - 1);
        if (some_only && !covers(some, row0, At::keys)) {
          copy_rows(shared.tile_v(tiles - 1), x.v.at<S>(b, key_head), x.v.row, row0, some, x.dv);
          if (lane_id() == 0) shared.ring_v().announce(tiles - 1);
        } else {
          fill(shared.tile_v(tiles - 1), map_v, shared.ring_v(), tiles - 1, row0, key_head, b);
        }
      }
    }
    --tiles;
  }
}

// The sink of a row of a head's queries: a key of the first part.
template <class S, class At>
__device__ __forceinline__ float sink_of(const AttentionCall& x, const Division& division, int batch_head,
                                         int i) {
  if (!x.sink) return -INFINITY;
  const S* const sinks = static_cast<const S*>(x.sink);
  if (!At::divided) return widen(sinks[batch_head % x.H]);
  if (batch_head >= division.sections.all_heads || i >= x.L) return -INFINITY;
  const int heads = x.L / division.queries;  // of the call, for one of the kernel's
  return widen(sinks[batch_head % x.H * heads + i / division.queries]);
}
// Where results of a head go: to the call's, or to those of parts. Computed while products run, for it takes
// a division.
template <class S, class At>
struct Destination {
  bool in_parts;
  float* lse;
  S* o;
  float* part;  // instead of o
  __device__ __forceinline__ Destination(const AttentionCall& x, const Division& division, int batch_head)
      : in_parts(At::divided && division.parts > 1),
        lse((in_parts ? division.lse : static_cast<float*>(x.lse)) + i64{batch_head} * x.L),
        o(x.o.at<S>(batch_head / x.H, batch_head % x.H)),
        part(division.o + i64{batch_head} * x.L * x.dv) {}
  // Stores columns of O, from column0 on, of a warp's queries from i0 on.
  template <class Columns>
  __device__ __forceinline__ void take(Columns& from, const AttentionCall& x, int i0, int column0 = 0) const {
    if (in_parts)
      store(from, part + column0, x.dv, i0, x.L, x.dv - column0);
    else
      store(from, o + column0, x.o.row, i0, x.L, x.dv - column0);
  }
};

// A warpgroup of 64 queries.
template <class S, class At, Options options>
struct Consumer {
  using Scores = Accumulator<16, At::keys>;
  static constexpr int D = At::Q::columns, DV = At::V::columns;
  const Shared<At>& shared;
  const AttentionCall& x;
  const Division& division;
  int group, row;  // the warp's first row of the block's
  u32 tiles = 0, items = 0;

  // A warpgroup starts its products when the one before has started its own.
  static constexpr int first_token = 1;
  __device__ __forceinline__ void take_turn() const {
    if constexpr (At::takes_turns) ptx::bar_sync(first_token + group, 256);
  }
  __device__ __forceinline__ void pass_turn() const {
    if constexpr (At::takes_turns)
      ptx::bar_arrive(first_token + (group + 1 < At::groups ? group + 1 : 0), 256);
  }
  // Tiles that only others need.
  __device__ __forceinline__ void pass_by(int count) {
#pragma unroll 1
    for (; count > 0; --count, ++tiles) {
      take_turn();
      pass_turn();
      shared.ring_k().wait(tiles), shared.ring_k().release(tiles);
      shared.ring_v().wait(tiles), shared.ring_v().release(tiles);
    }
  }

  // S = Q·Kᵀ of the next tile
  __device__ __forceinline__ void begin_scores(Scores& s) const {
    begin_ABt<S, D>(s, shared.tile_q(group, items), 0, shared.tile_k(tiles));
  }

  __device__ __forceinline__ void run() {
    if (group == At::groups - 1) pass_turn();
#pragma unroll 1
    for (;; ++items) {
      shared.ring_items().wait(items);
      const auto& item = shared.item_of(items);
      const int batch_head = __reduce_max_sync(~0u, item.batch_head),
                i0 = __reduce_max_sync(~0u, item.i0) + row;
      if (batch_head < 0) return;
      const KeyRange every = item.every[group];
      const auto uniform = [](KeyRange r) {
        return Tiles({__reduce_max_sync(~0u, r.from), __reduce_max_sync(~0u, r.to)}, At::keys);
      };
      const Tiles range = uniform(item.some), own = At::own_keys ? uniform(item.own[group]) : range;
      if (At::own_keys && own.from == own.to) {  // no queries
        shared.ring_q(group).wait(items);
        shared.ring_q(group).release(items);
        shared.ring_items().release(items);
        pass_by(range.to - range.from);
        continue;
      }
      pass_by(range.to - own.to);
      const Score<S> score(x, 0, 0);  // there is no bias
      const float factor = options == any ? 1 : score.factor;
      OnlineSoftmax<16> softmax([&](int i) { return sink_of<S, At>(x, division, batch_head, i0 + i); });
      Scores s;
      Accumulator<16, DV> o;
      o.fill(0);
      Packed<At::keys> p;
      const auto release_operands = [&](int j) {
        shared.ring_k().release(tiles);
        if (j == own.from) shared.ring_q(group).release(items);
      };
      // From q·k of tile j to P = exp(A − c). Returns whether c moved.
      const auto soften = [&](int j) {
        const int j0 = j * At::keys;
        if constexpr (options == any) score.apply(s);
        if (!covers(every, j0, At::keys)) mask(s, item.seen, row, 0, j0);
        return softmax.step(s, factor);
      };
      shared.ring_q(group).wait(items);
      shared.ring_k().wait(tiles);
      take_turn();
      begin_scores(s);
      pass_turn();
      wait_for_products<0>();
      keep(s);
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
        begin_AB<S>(o, p, shared.tile_v(tiles - 1));  // G += P·V of the tile before
        pass_turn();
        wait_for_products<1>();
        keep(s);
        release_operands(j);
        const bool moved = soften(j);
        wait_for_products<0>();
        keep(o), keep(p);
        shared.ring_v().release(tiles - 1);
        pack<S>(p, s);
        if (moved) softmax.rescale(o);
      }
      shared.ring_items().release(items);
      shared.ring_v().wait(tiles);
      begin_AB<S>(o, p, shared.tile_v(tiles));
      const Destination<S, At> to(x, division, batch_head);
      wait_for_products<0>();
      keep(o);
      shared.ring_v().release(tiles++);
      pass_by(own.from - range.from);
      softmax.finish(o, to.lse, i0, x.L);
      to.take(o, x, i0);
    }
  }
};

template <class S, class At, Options options>
__global__ void __launch_bounds__(At::threads, At::blocks)
    attend(const __grid_constant__ AttentionCall x, const __grid_constant__ CUtensorMap map_q,
           const __grid_constant__ CUtensorMap map_k, const __grid_constant__ CUtensorMap map_v,
           const __grid_constant__ Division division) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TG_DYNAMIC_SHARED(memory, 1024);
  const Shared<At> shared{memory};
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (group == 0) {
    ptx::give_registers<At::producer_registers>();
    if (threadIdx.x < 32)
      load<S>(shared, x, map_q, map_k, map_v);
    else if (threadIdx.x < 64)
      schedule<At>(shared, x, division);
  } else {
    ptx::take_registers<At::consumer_registers>();
    Consumer<S, At, options>{shared, x, division, group - 1,
                             (group - 1) * 64 + static_cast<int>(threadIdx.x / 32 % 4) * 16}
        .run();
  }
#endif
}

// The order of items of `queries` queries; a key with its value has that many numbers.
inline Sections sections_of(const AttentionCall& x, int queries, int numbers) {
  Sections sections{(x.L + queries - 1) / queries, 1, x.H, static_cast<int>(x.B) * x.H, queries};
  if (is_uneven(x)) {
    constexpr i64 cached = 32 << 20;  // bytes
    const i64 head = i64{x.T} * numbers * 2,
              heads = std::max<i64>(cached / std::max<i64>(head, 1), 1) * (x.H / x.Hk);
    sections.together = static_cast<int>(std::min<i64>(heads, sections.all_heads));
  }
  return sections;
}
// Starts a kernel whose blocks take one item after the other: from a counter, if items are not equal. `x` is
// the call with_heads_as_rows(); `queries` those of a head of the call before; `numbers` as above.
template <class At, class Kernel>
void launch_items(const Stream& s, const AttentionCall& x, int queries, int numbers, const Workspace& work,
                  std::size_t shared, Kernel kernel, const CUtensorMap& q, const CUtensorMap& k,
                  const CUtensorMap& v) {
  const Sections sections = sections_of(x, At::queries, numbers);
  const i64 all = i64{sections.blocks} * sections.all_heads * work.parts;
  const int grid = static_cast<int>(std::min<i64>(all, i64{s.gpu.processors} * At::blocks));
  if (grid == 0) return;
  int* const counter = is_uneven(x) && all > grid ? work.counter : nullptr;
  if (counter) cudaMemsetAsync(counter, 0, sizeof(int), s.stream);
  launch_kernel(s, {static_cast<unsigned>(grid), At::threads, shared}, kernel, x, q, k, v,
                Division{sections, counter, queries, work.parts, work.o, work.lse});
  if (work.parts > 1) launch_merge(s, x, work);
}

// `x` and `queries` as above.
template <class S, class At, Options options>
void launch(const Stream& s, const AttentionCall& x, int queries, const Workspace& work) {
  if constexpr (!At::divided)
    if (work.parts > 1 || queries < x.L) return launch<S, Divided<At>, options>(s, x, queries, work);
  const CUtensorMap q = tensor_map(x.type, x.q, x.B, x.H, x.L, x.d, 64),
                    k = tensor_map(x.type, x.k, x.B, x.Hk, x.T, x.d, At::keys),
                    v = tensor_map(x.type, x.v, x.B, x.Hk, x.T, x.dv, At::keys);
  launch_items<At>(s, x, queries, x.d + x.dv, work, Shared<At>::bytes, attend<S, At, options>, q, k, v);
}

}  // namespace tg::cuda::attention::forward_sm90
