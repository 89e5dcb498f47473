// The forward on Hopper for head sizes above 256, up to 576 (q, k) and 512 (v). It works like
// forward_sm90.cuh, except for the roles of the consumer warpgroups. G of 64 queries fills the registers of
// two warpgroups, so a block has three consumer warpgroups with different roles:
//
//   first:          A = Q·Kᵀ,  c ← max(c, A.max),  P = exp(A − c),  π ← exp(c_old − c)·π + P.sum
//   second, third:  G ← exp(c_old − c)·G + P·V, half of the columns each
//
// P is passed through shared memory in register order. While the first warpgroup computes exponentials, the
// GEMMs of the other two warpgroups run.
#pragma once

#include "backends/cuda/attention/forward/forward_sm90.cuh"

namespace tg::cuda::attention::forward_576_sm90 {

using namespace tile;
using forward_sm90::Destination, forward_sm90::fill, forward_sm90::Item, forward_sm90::Plan,
    forward_sm90::uniform, forward_sm90::sink_of;

// Data that the first warpgroup passes to the others with each tile. `p` is P in the order of its threads.
// `moved` states whether c changed for a warp's queries, and `shrink` is then exp(c_old − c) of each query.
// `inverse` is 1 ⊘ π, passed with the last tile only.
struct Passed {
  uint4 p[4][128];
  int moved[4];
  float shrink[64], inverse[64];
};

template <class At, class Item = Item<1>>
struct Shared {
  static constexpr int k = At::Q::bytes, v = k + At::k_stages * At::K::bytes,
                       passed_ = v + (At::values_are_keys ? 0 : At::V::bytes),
                       q_rings = passed_ + int(sizeof(Passed)),
                       k_rings = q_rings + At::thirds * Ring<1>::bytes,
                       v_ring = k_rings + At::thirds * Ring<At::k_stages>::bytes,
                       p_rings = v_ring + Ring<1>::bytes, item_ring = p_rings + 2 * Ring<1>::bytes,
                       item = item_ring + Ring<At::items>::bytes,
                       bytes = item + At::items * int(sizeof(Item));
  static_assert(bytes <= 227 << 10);
  unsigned char* start;
  u32 base = shared_address(start);

  __device__ typename At::Q tile_q() const { return {base}; }
  __device__ typename At::K tile_k(u32 use) const {
    return {base + k + Ring<At::k_stages>::stage(use) * At::K::bytes};
  }
  __device__ typename At::V tile_v(u32 use) const {
    return {At::values_are_keys ? tile_k(use).base : base + v};
  }
  // Queries and keys are loaded in thirds of their columns, so that the first GEMM can start early. All
  // thirds of a tile are acquired and released at the ring of the first third.
  __device__ Ring<1> ring_q(int third = 0) const { return {base + q_rings + third * Ring<1>::bytes}; }
  __device__ Ring<At::k_stages> ring_k(int third = 0) const {
    return {base + k_rings + third * Ring<At::k_stages>::bytes};
  }
  __device__ Ring<1> ring_v() const { return {base + v_ring}; }
  // P is passed in halves of the keys, so that the GEMMs of the first half start early.
  __device__ Ring<1> ring_p(int half = 0) const { return {base + p_rings + half * Ring<1>::bytes}; }
  __device__ Ring<At::items> ring_items() const { return {base + item_ring}; }
  __device__ Item& item_of(u32 use) const {
    return reinterpret_cast<Item*>(start + item)[Ring<At::items>::stage(use)];
  }
  __device__ Passed& passed() const { return *reinterpret_cast<Passed*>(start + passed_); }
  __device__ void init(int loaders = 1) const {  // `loaders`: warps that load tiles
    for (int n = 0; n < At::thirds; ++n) ring_q(n).init(4), ring_k(n).init(At::values_are_keys ? 8 : 4);
    ring_v().init(8), ring_p(0).init(8, 4), ring_p(1).init(8, 4), ring_items().init(4 + 8 + loaders);
    ptx::fence_mbarrier_init();
  }
};

template <class Tile>
using Third = SwizzledTile<Tile::rows, Tile::columns / 3>;
template <class Tile>
__device__ __forceinline__ Third<Tile> third(Tile tile, int n) {
  return {tile.base + n * Third<Tile>::bytes};
}

// Loading warp.
template <class S, class At>
__device__ __forceinline__ void load(const Shared<At>& shared, const AttentionCall& x, const Plan& plan) {
  const bool some_only = x.lengths || x.cu_k;  // memory of other keys may contain anything
  u32 tiles = 0;
  forward_sm90::for_each_item(shared, [&](const forward_sm90::Source& item, u32 items) {
    const auto [b, h, i0, some, range] = item;
    const int key_head = h / (x.H / x.Hk);
    shared.ring_q().acquire(items);
#pragma unroll 1
    for (int j = range.to - 1; j >= range.from; --j, ++tiles) {
      const int row0 = j * At::keys;
      const bool by_rows = some_only && !covers(some, row0, At::keys);
      shared.ring_k().acquire(tiles);
#pragma unroll 1
      for (int n = 0; n < At::thirds; ++n) {
        const int column0 = n * Third<typename At::K>::columns;
        if (j == range.to - 1)
          fill(third(shared.tile_q(), n), plan.q, shared.ring_q(n), items, i0, h, b, column0);
        if (!At::values_are_keys || !by_rows)
          fill(third(shared.tile_k(tiles), n), plan.k, shared.ring_k(n), tiles, row0, key_head, b, column0);
      }
      if (At::values_are_keys && by_rows) {
        copy_rows(shared.tile_k(tiles), x.k.at<S>(b, key_head), x.k.row, row0, some, x.d);
        if (lane_id() < At::thirds) shared.ring_k(lane_id()).announce(tiles);
      }
      if constexpr (At::values_are_keys) continue;
      shared.ring_v().acquire(tiles);
      if (by_rows) {
        copy_rows(shared.tile_v(tiles), x.v.at<S>(b, key_head), x.v.row, row0, some, x.dv);
        if (lane_id() == 0) shared.ring_v().announce(tiles);
      } else {
        fill(shared.tile_v(tiles), plan.v, shared.ring_v(), tiles, row0, key_head, b);
      }
    }
  });
}

// First consumer warpgroup: scores and softmax. `row` is the warp's first query in the block.
template <class S, class At, class Memory = Shared<At>>
struct Scorer {
  using Scores = Accumulator<16, At::keys>;
  const Memory& shared;
  const AttentionCall& x;
  const Plan& plan;
  int row;
  u32 tiles = 0, items = 0;

  // Computes A = Q·Kᵀ of the next tile.
  __device__ __forceinline__ void multiply(Scores& s) const {
    using Part = Third<typename At::K>;
#pragma unroll
    for (int n = 0; n < At::thirds; ++n) {
      shared.ring_q(n).wait(items), shared.ring_k(n).wait(tiles);
      const Part q = third(shared.tile_q(), n), k = third(shared.tile_k(tiles), n);
      if (n == 0)
        begin_ABt<S, Part::columns>(s, q, 0, k);
      else
        begin_adding_ABt<S, Part::columns>(s, q, 0, k);
    }
    wait_for_products<0>();
    keep(s);
  }
  // Columns 16·k … of P, rounded, as a left MMA operand.
  __device__ __forceinline__ static uint4 packed(const Scores& s, int k) {
    const float(&a)[4] = s.x[0][2 * k], (&b)[4] = s.x[0][2 * k + 1];
    return {pack(a[0], a[1], S()), pack(a[2], a[3], S()), pack(b[0], b[1], S()), pack(b[2], b[3], S())};
  }
  // Writes a value for one of the warp's queries.
  __device__ __forceinline__ void put_factor(float (&to)[64], int r, float value) const {
    if (lane_id() % 4 == 0) to[row + Scores::row(r) + lane_row()] = value;
  }

  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (;; ++items) {
      shared.ring_items().wait(items);
      const auto& item = shared.item_of(items);
      const int batch_head = uniform(item.batch_head), i0 = uniform(item.i0);
      const Tiles range = uniform(item.range);
      if (batch_head < 0) return;
      const KeyRange every = item.every[0];
      const Score<S> score(plan.factor, plan.cap);
      const bool plain = score.is_plain();
      const Units units = units_of(x);
      OnlineSoftmax<16, false, true> softmax(  // the class that decoding also uses
          [&](int i) { return sink_of<S, At>(x, plan, item, i0 + row + i); }, units.exponent,
          units.natural.x);
#pragma unroll 1
      for (int j = range.to - 1; j >= range.from; --j, ++tiles) {
        Scores s;
        multiply(s);
        if (!At::values_are_keys) shared.ring_k().release(tiles);
        if (j == range.from) shared.ring_q().release(items);
        if (!plain) score.template apply<true>(s);
        if (!covers(every, j * At::keys, At::keys)) mask(s, item.seen, row, 0, j * At::keys);
        const bool moved = softmax.raise(s);
        shared.ring_p().acquire(tiles);
        Passed& to = shared.passed();
        if (lane_id() == 0) to.moved[row / 16] = moved;
        if (moved) {
#pragma unroll
          for (int r = 0; r < Scores::rows; ++r) put_factor(to.shrink, r, softmax.shrink[r]);
        }
        const auto pass = [&](auto half) {
          constexpr int steps = At::keys / 32, columns = Scores::columns / 2;
          softmax.template exponentiate<half * columns, half * columns + columns>(s);
#pragma unroll
          for (int k = 0; k < steps; ++k)
            to.p[half * steps + k][threadIdx.x % 128] = packed(s, half * steps + k);
          if (half == 1 && j == range.from)
            softmax.finish(Destination<S, At>{x, plan, batch_head, 0, 0}.lse(), i0 + row, x.L, units.natural,
                           [&](int r, float inverse) { put_factor(to.inverse, r, inverse); });
          shared.ring_p(half).announce_by_warp(tiles);
        };
        pass(constant<0>()), pass(constant<1>());
      }
      shared.ring_items().release(items);
    }
  }
};

// Second or third consumer warpgroup: columns column0 … of G, in two halves. One instruction for both halves
// would need too many registers. Before setmaxnreg, a thread of a 512-thread block has fewer (ptxas message
// C7602).
template <class S, class At, class Memory = Shared<At>>
struct Adder {
  static constexpr int columns = At::V::columns / 2;
  using Half = Accumulator<16, columns / 2>;
  const Memory& shared;
  const AttentionCall& x;
  const Plan& plan;
  int row, column0;
  u32 tiles = 0, items = 0;

  __device__ __forceinline__ RowVector<16> get_factors(const float (&from)[64]) const {
    RowVector<16> to;
#pragma unroll
    for (int r = 0; r < to.rows; ++r) to[r] = from[row + Accumulator<16, 8>::row(r) + lane_row()];
    return to;
  }

  __device__ __forceinline__ void run() {
#pragma unroll 1
    for (;; ++items) {
      shared.ring_items().wait(items);
      const auto& item = shared.item_of(items);
      const int batch_head = uniform(item.batch_head), i0 = uniform(item.i0);
      const Tiles range = uniform(item.range);
      shared.ring_items().release(items);
      if (batch_head < 0) return;
      Half left, right;
      left.fill(0), right.fill(0);
      keep(left), keep(right);
      RowVector<16> inverse;
#pragma unroll 1
      for (int j = range.to - 1; j >= range.from; --j, ++tiles) {
        const Passed& from = shared.passed();
        Packed<At::keys / 2> p[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          constexpr int steps = At::keys / 32;
          shared.ring_p(half).wait(tiles);
#pragma unroll
          for (int k = 0; k < steps; ++k) {
            const uint4 v = from.p[half * steps + k][threadIdx.x % 128];
            p[half].x[k][0] = v.x, p[half].x[k][1] = v.y, p[half].x[k][2] = v.z, p[half].x[k][3] = v.w;
          }
          if (half == 0) {
            if (__any_sync(~0u, from.moved[row / 16])) {
              const RowVector<16> shrink = get_factors(from.shrink);
              scale_rows(left, shrink), scale_rows(right, shrink);
            }
            if (!At::values_are_keys) shared.ring_v().wait(tiles);
          } else {
            if (j == range.from) inverse = get_factors(from.inverse);
            shared.ring_p().release(tiles);
          }
          const typename At::V v{shared.tile_v(tiles).base + half * At::keys / 2 * 128};  // the half's rows
          begin_AB<S>(left, p[half], v, column0);
          begin_AB<S>(right, p[half], v, column0 + Half::parts * 8);
        }
        wait_for_products<0>();
        keep(left), keep(right), keep(p[0]), keep(p[1]);
        if constexpr (At::values_are_keys)
          shared.ring_k().release(tiles);
        else
          shared.ring_v().release(tiles);
      }
      scale_rows(left, inverse), scale_rows(right, inverse);
      const Destination<S, At> to{x, plan, batch_head, batch_head / x.H, batch_head % x.H};
      to.take(left, i0 + row, column0);
      to.take(right, i0 + row, column0 + Half::parts * 8);
    }
  }
};

template <class S, class At>
__global__ void __launch_bounds__(At::threads, 1)
    attend(const __grid_constant__ AttentionCall x, const __grid_constant__ Plan plan) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  TG_DYNAMIC_SHARED(memory, 1024);
  const Shared<At> shared{memory};
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), row = static_cast<int>(threadIdx.x / 32 % 4) * 16;
  if (group == 0) {
    ptx::give_registers<At::producer_registers>();
    if (threadIdx.x < 32)
      load<S>(shared, x, plan);
    else if (threadIdx.x < 64)
      forward_sm90::schedule<S, At>(shared, x, plan);
  } else if (group == 1) {
    Scorer<S, At>{shared, x, plan, row}.run();
  } else {
    ptx::take_registers<At::adder_registers>();
    Adder<S, At>{shared, x, plan, row, (group - 2) * Adder<S, At>::columns}.run();
  }
#endif
}

}  // namespace tg::cuda::attention::forward_576_sm90
