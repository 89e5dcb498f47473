// The forward on Hopper (FlashAttention-3) [Stratos, FlashAttention §D]: blocks stay on their multiprocessor
// and take one item of work after the other, some queries of a head. One warp prepares items, one
// copies tiles by TMA; warpgroups of 64 queries, the consumers, multiply by wgmma and take turns, so that
// one's softmax runs while another's products do.
//
//   c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum, G ← exp(c_old − c)·G + exp(A − c)·V
//   O = G ⊘ π, ξ = c + log π
#pragma once

#include "backends/cuda/attention/epilogue.cuh"
#include "backends/cuda/attention/key_source_sm90.cuh"
#include "backends/cuda/attention/powers.cuh"
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

// Some queries of a head, and the keys that they see.
template <int groups>
struct Item {
  int batch_head, b, h, i0;             // batch_head < 0: there are no more
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
                                         const Sections& sections, int* counter) {
#pragma unroll 1
  for (u32 items = 0, n = blockIdx.x;; ++items) {
    shared.ring_items().acquire(items);
    auto& item = shared.item_of(items);
    const bool last = n >= static_cast<u32>(sections.all());
    if (!last) {
      const Place at = sections.place(n, true);
      item.seen.set(x, at.b, at.row0, lane_id(), 32);
      __syncwarp();
      KeyRange some{INT_MAX, 0};
#pragma unroll 1
      for (int g = 0; g < At::groups; ++g) {
        KeyRange own, every;
        item.seen.unite(64 * g, min(64 * g + 64, x.L - at.row0), own, every);
        if (own.from < own.to) some = {min(some.from, own.from), max(some.to, own.to)};
        if (lane_id() == 0) item.own[g] = own, item.every[g] = every;
      }
      if (lane_id() == 0) {
        if (some.from >= some.to) some = {0, 1};
        // Queries that see nothing go through one tile all the same.
        for (int g = 0; g < At::groups && 64 * g < x.L - at.row0; ++g)
          if (item.own[g].from >= item.own[g].to) item.own[g] = {some.from, some.from + 1};
        item.some = some;
        item.b = at.b, item.h = at.head, item.i0 = at.row0;
      }
    }
    if (lane_id() == 0) item.batch_head = last ? -1 : item.b * x.H + item.h;
    __syncwarp();
    if (lane_id() == 0) shared.ring_items().announce(items);
    if (last) return;
    n += gridDim.x;
    if (counter) n = __reduce_add_sync(~0u, lane_id() == 0 ? gridDim.x + atomicAdd(counter, 1) : 0);
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
          copy_rows(shared.tile_v(tiles - 1), x.v.at<S>(b, key_head), x.v.row, row0, some,
                    size_in_memory<At>(x.v, x.dv));
          if (lane_id() == 0) shared.ring_v().announce(tiles - 1);
        } else {
          fill(shared.tile_v(tiles - 1), map_v, shared.ring_v(), tiles - 1, row0, key_head, b);
        }
      }
    }
    --tiles;
  }
}

// A warpgroup of 64 queries. Operands are numbers of type S, or of terms of it with powers of two.
template <class S, class At, Options options>
struct Consumer {
  using R = Result<S, At>;
  using T = Terms<S, At::terms>;
  using Scores = Accumulator<16, At::keys>;
  static constexpr int D = At::D, DV = At::DV;
  const Shared<At>& shared;
  const AttentionCall& x;
  const Powers* powers;
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
    begin_terms_ABt<T, D>(s, shared.tile_q(group, items), 0, shared.tile_k(tiles));
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
      const int b = batch_head / x.H, h = batch_head % x.H;
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
      Score<R> score(x, b, h);
      const Powers* const power = powers + b * x.Hk + h / (x.H / x.Hk);
      if constexpr (At::split) score.factor *= power_of_two(-power->q - power->k);
      const float factor = options == any ? 1 : score.factor;
      OnlineSoftmax<16> softmax(x.sink ? widen(static_cast<const R*>(x.sink)[h]) : -INFINITY);
      Scores s;
      SumOfProducts<T, DV> o;
      o.all.fill(0);
      PackedTerms<T, At::keys> p;
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
        o.begin_AB(p, shared.tile_v(tiles - 1));  // G += P·V of the tile before
        pass_turn();
        wait_for_products<products_of_terms<T>>();
        keep(s);
        release_operands(j);
        const bool moved = soften(j);
        wait_for_products<0>();
        o.end(), keep(p);
        shared.ring_v().release(tiles - 1);
        pack<S>(p, s);
        if (moved) softmax.rescale(o.all);
      }
      shared.ring_items().release(items);
      shared.ring_v().wait(tiles);
      o.begin_AB(p, shared.tile_v(tiles));
      wait_for_products<0>();
      o.end();
      shared.ring_v().release(tiles++);
      pass_by(own.from - range.from);
      softmax.finish(o.all, static_cast<float*>(x.lse) + i64(batch_head) * x.L, i0, x.L);
      if constexpr (At::split) scale(o.all, 1, -power->v);
      store(o.all, x.o.at<R>(b, h), x.o.row, i0, x.L, x.dv);
    }
  }
};

template <class S, class At, Options options>
__global__ void __launch_bounds__(At::threads, 1)
    attend(const __grid_constant__ AttentionCall x, const __grid_constant__ CUtensorMap map_q,
           const __grid_constant__ CUtensorMap map_k, const __grid_constant__ CUtensorMap map_v,
           const Sections sections, int* counter, const Powers* powers) {
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
      schedule<At>(shared, x, sections, counter);
  } else {
    ptx::take_registers<At::consumer_registers>();
    Consumer<S, At, options>{shared, x, powers, group - 1,
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
// Starts a kernel whose blocks take one item after the other: from a counter, if items are not equal.
template <class Kernel>
void launch_items(const Stream& s, const AttentionCall& x, const Sections& sections, int* counter,
                  unsigned threads, std::size_t shared, Kernel kernel, const CUtensorMap& q,
                  const CUtensorMap& k, const CUtensorMap& v, const auto&... more) {
  const i64 all = i64{sections.blocks} * sections.all_heads;
  const int grid = static_cast<int>(std::min<i64>(all, s.gpu.processors));
  if (grid == 0) return;
  if (!is_uneven(x) || all <= grid) counter = nullptr;
  if (counter) cudaMemsetAsync(counter, 0, sizeof(int), s.stream);
  launch_kernel(s, {static_cast<unsigned>(grid), threads, shared}, kernel, x, q, k, v, sections, counter,
                more...);
}

template <class S, class At, Options options>
void launch(const Stream& s, const AttentionCall& x, int* counter, const Powers* powers) {
  const int d = size_in_memory<At>(x.k, x.d), dv = size_in_memory<At>(x.v, x.dv);
  const CUtensorMap q = tensor_map(x.type, x.q, x.B, x.H, x.L, d, 64),
                    k = tensor_map(x.type, x.k, x.B, x.Hk, x.T, d, At::keys),
                    v = tensor_map(x.type, x.v, x.B, x.Hk, x.T, dv, At::keys);
  launch_items(s, x, sections_of(x, At::queries, d + dv), counter, At::threads, Shared<At>::bytes,
               attend<S, At, options>, q, k, v, powers);
}

}  // namespace tg::cuda::attention::forward_sm90
