// The backward on Hopper (FlashAttention-3) [Stratos, FlashAttention §D]: a block keeps some keys of a key
// head and loops over tiles of queries, those of each query head of the group,
//
//   P = exp(A − ξ), z_A = P ⊛ (V·z_Oᵀ − u)   [keys, queries],  A from S = K·Qᵀ
//   z_V += P·z_O,  z_K += z_A·Q,  z_Q += z_Aᵀ·K in global memory.
//
// One thread copies tiles by TMA, two others wait for the block's turns and end them. Two warpgroups of 64
// keys each multiply by wgmma: P and z_A are left operands in registers, and z_A also passes through shared
// memory, because z_Q needs that of both. Blocks add to the same sums of z_Q straight from registers, in a
// fixed order: the same bits every time. In free order, none waits for another.
#pragma once

#include "backends/cuda/attention/epilogue.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/key_source_sm90.cuh"
#include "backends/cuda/attention/score_gradient.cuh"
#include "backends/cuda/attention/shapes.h"
#include "backends/cuda/attention/shapes_sm90.h"
#include "backends/cuda/attention/tensor_map.h"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/tile/mma_sm90.cuh"
#include "backends/cuda/tile/pipeline_sm90.cuh"

namespace tg::cuda::attention::backward_sm90 {

using namespace tile;

// What comes with a tile of queries.
template <int queries>
struct Rows {
  float lse[queries], u[queries];  // ξ in units of log 2
  SeenKeys<queries> seen;
  KeyRange every, some;  // keys that all of them see, that some of them sees
  static constexpr int floats = 2 * queries, ints = 2 * queries + 4;
};

// Where a block works, and the tiles of queries that see its keys.
struct WorkItem {
  Place at;
  Meeting met;
};

template <int D>
struct Shared {
  using At = Shape<D>;
  using Stage = Rows<At::queries>;
  static constexpr int v = At::K::bytes, q = v + At::K::bytes, z_o = q + At::stages * At::Q::bytes,
                       z_a = z_o + At::stages * At::Q::bytes, rows = z_a + 2 * At::ZA::bytes,
                       kept_ring = rows + At::stages * int(sizeof(Stage)),
                       q_ring = kept_ring + Ring<1>::bytes, z_o_ring = q_ring + Ring<At::stages>::bytes,
                       turn_ring = z_o_ring + Ring<At::stages>::bytes,
                       added_ring = turn_ring + Ring<2>::bytes, item_at = added_ring + Ring<2>::bytes,
                       turn_at = item_at + aligned(sizeof(WorkItem), 16), bytes = turn_at + 16;
  unsigned char* start;
  u32 base = shared_address(start);

  __device__ typename At::K tile_k() const { return {base}; }
  __device__ typename At::K tile_v() const { return {base + v}; }
  __device__ typename At::Q tile_q(u32 use) const { return {base + q + ring_q().stage(use) * At::Q::bytes}; }
  __device__ typename At::Q tile_z_o(u32 use) const {
    return {base + z_o + ring_q().stage(use) * At::Q::bytes};
  }
  __device__ typename At::ZA tile_z_a(u32 use) const { return {base + z_a + use % 2 * At::ZA::bytes}; }
  __device__ Stage& rows_of(u32 use) const {
    return reinterpret_cast<Stage*>(start + rows)[ring_q().stage(use)];
  }
  __device__ Ring<1> ring_kept() const { return {base + kept_ring}; }     // filled once
  __device__ Ring<At::stages> ring_q() const { return {base + q_ring}; }  // Q and Rows
  __device__ Ring<At::stages> ring_z_o() const { return {base + z_o_ring}; }
  // Full: the block may add to a tile's z_Q; and it has.
  __device__ Ring<2> ring_turn() const { return {base + turn_ring}; }
  __device__ Ring<2> ring_added() const { return {base + added_ring}; }
  __device__ int& turn(u32 use) const { return reinterpret_cast<int*>(start + turn_at)[use % 2]; }
  __device__ WorkItem& item() const { return *reinterpret_cast<WorkItem*>(start + item_at); }
  __device__ void init(bool free_order) const {
    ring_kept().init(8), ring_q().init(free_order ? 8 : 9), ring_z_o().init(8), ring_turn().init(1),
        ring_added().init(1, 8);
    ptx::fence_mbarrier_init();
  }
};

// Before the roles part: starts copying the block's keys and values, and finds out which tiles see them; by a
// warp.
template <class S, int D>
__device__ __forceinline__ void keep_rows(const Shared<D>& shared, const AttentionCall& x,
                                          const Workspace& work, const Plan& plan, Place at) {
  using At = Shape<D>;
  const Meeting met =
      tiles_that_meet(work.some + i64{at.b} * plan.tiles, plan.tiles, at.row0, at.row0 + At::keys);
  if (lane_id() == 0) shared.item() = {at, met};
  if (met.first >= met.last) return;
  const u32 barrier = shared.ring_kept().full(0);
  if ((x.lengths || x.cu_k) &&
      !covers(met.keys, at.row0, At::keys)) {  // memory of other keys may hold anything
    copy_rows(shared.tile_k(), x.k.at<S>(at.b, at.head), x.k.row, at.row0, met.keys, x.d);
    copy_rows(shared.tile_v(), x.v.at<S>(at.b, at.head), x.v.row, at.row0, met.keys, x.dv);
    if (lane_id() == 0) shared.ring_kept().announce(0);
  } else if (lane_id() == 0) {
    shared.ring_kept().expect(0, 2 * At::K::bytes);
    load_boxes(shared.tile_k(), plan.k, barrier, at.row0, at.head, at.b);
    load_boxes(shared.tile_v(), plan.v, barrier, at.row0, at.head, at.b);
  }
}

// The thread that copies tiles.
template <class S, int D>
__device__ __forceinline__ void load(const Shared<D>& shared, const AttentionCall& x, const Workspace& work,
                                     const Plan& plan) {
  using At = Shape<D>;
  using Stage = typename Shared<D>::Stage;
  const int b = shared.item().at.b, first = shared.item().met.first, tiles = shared.item().met.last - first;
  int h = shared.item().at.head * plan.group, tile = 0;
  const float* rows = work.rows + ((i64{b} * x.H + h) * plan.tiles + first) * Stage::floats;
  const int* seen = work.seen + (i64{b} * plan.tiles + first) * Stage::ints;
#pragma unroll 1
  for (u32 n = 0, all = max(tiles, 0) * plan.group; n < all; ++n) {
    const u32 to = shared_address(&shared.rows_of(n)), barrier = shared.ring_q().full(n);
    const int i0 = (first + tile) * At::queries;
    shared.ring_q().acquire(n);
    shared.ring_q().expect(n, At::Q::bytes + sizeof(Stage));
    ptx::bulk_load(to, rows, Stage::floats * 4, barrier);
    ptx::bulk_load(to + Stage::floats * 4, seen + tile * Stage::ints, Stage::ints * 4, barrier);
    load_boxes(shared.tile_q(n), plan.q, barrier, i0, h, b);
    shared.ring_z_o().acquire(n);
    shared.ring_z_o().expect(n, At::Q::bytes);
    load_boxes(shared.tile_z_o(n), plan.z_o, shared.ring_z_o().full(n), i0, h, b);
    rows += Stage::floats;
    if (++tile < tiles) continue;
    rows += i64{plan.tiles - tiles} * Stage::floats;
    tile = 0, ++h;
  }
}

// The blocks of a key head that add to z_Q of a tile of queries do so one after the other, those of the first
// keys first. A block waits for blocks before it in the grid only. Of a block, its turn: -1 if it has none.
template <int keys>
__device__ __forceinline__ int turn_of(KeyRange some, int j0) {
  return some.from < j0 + keys && some.to > j0 ? j0 / keys - some.from / keys : -1;
}
// Calls f(n, counter) for the block's tiles of queries, the nth of which has its turns counted there.
template <int D, class F>
__device__ __forceinline__ void for_each_turn(const Shared<D>& shared, const AttentionCall& x,
                                              const Workspace& work, const Plan& plan, F&& f) {
  const Place at = shared.item().at;
  const int first = shared.item().met.first, tiles = shared.item().met.last - first;
  int* counter = work.turns + (i64{at.b} * x.H + at.head * plan.group) * plan.tiles + first;
  int tile = 0;
#pragma unroll 1
  for (u32 n = 0, all = max(tiles, 0) * plan.group; n < all; ++n) {
    f(n, counter + tile);
    if (++tile == tiles) tile = 0, counter += plan.tiles;
  }
}
// The thread that waits for the block's turns, and the one that ends them.
template <int D>
__device__ __forceinline__ void await_turns(const Shared<D>& shared, const AttentionCall& x,
                                            const Workspace& work, const Plan& plan) {
  for_each_turn(shared, x, work, plan, [&](u32 n, const int* counter) {
    shared.ring_q().wait(n);
    const int turn = turn_of<Shape<D>::keys>(shared.rows_of(n).some, shared.item().at.row0);
    shared.ring_q().release_alone(n);
    shared.ring_turn().acquire(n);
    while (turn >= 0 && ptx::load_acquire(counter) != turn) {
    }
    shared.turn(n) = turn;
    shared.ring_turn().announce(n);
  });
}
template <int D>
__device__ __forceinline__ void end_turns(const Shared<D>& shared, const AttentionCall& x,
                                          const Workspace& work, const Plan& plan) {
  for_each_turn(shared, x, work, plan, [&](u32 n, int* counter) {
    shared.ring_added().wait(n);
    if (shared.turn(n) >= 0) ptx::add_release(counter, 1);
    shared.ring_turn().release_alone(n);
  });
}

// A warpgroup of 64 keys.
template <class S, int D>
struct Consumer {
  using At = Shape<D>;
  static constexpr int queries = At::queries;
  using Scores = Accumulator<16, queries>;
  using Operand = Packed<queries>;

  const Shared<D>& shared;
  const AttentionCall& x;
  const Workspace& work;
  const Plan& plan;
  int group;
  // The warp's first row of the block's keys, computed where needed to save a register.
  __device__ __forceinline__ static int row() { return static_cast<int>(threadIdx.x) / 32 * 16 - 64; }

  // From q·k to P, rounded: of P itself there are no registers to keep it.
  __device__ __forceinline__ void probabilities(Scores& s, Operand& p, const Rows<queries>& rows,
                                                const Score<S>& score, int j0, bool masked) const {
    const Dropout<float> dropout(x);
    const ScoreGradient<S, none, false, StatRows> stage{x, score, dropout, {rows.lse, rows.u}, 0, 0, 0};
    const auto of_part = [&](int, int column, float(&a)[4]) {
      float slope[4];
      stage.probability({0, column}, a, slope);
    };
    for_each_part(of_part, s);
    if (masked) mask<false>(s, rows.seen, row(), 0, j0, 0);
    pack<S>(p, s);
  }

  // z_A to shared memory, [queries, keys], where both warpgroups read it.
  __device__ __forceinline__ void share(Operand& z_a, u32 n) const {
    const typename At::ZA to = shared.tile_z_a(n);
    const int lane = lane_id(), warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int k = 0; k < queries / 16; ++k)
      ptx::stmatrix_trans(
          to.base + to.offset(16 * k + lane % 8 + lane / 16 * 8, group * 8 + warp * 2 + lane / 8 % 2),
          z_a.x[k]);
    ptx::fence_async();
  }
  // Queries outside of all sequences, where memory may hold anything, become zeros.
  __device__ __forceinline__ void clear_others(u32 n, int i0) const {
    const KeyRange valid = queries_of_sequences(x);
    if (covers(valid, i0, queries)) return;
    shared.ring_z_o().wait(n);
#pragma unroll 1
    for (int k = threadIdx.x - 128; k < queries * D / 8; k += 256) {
      const int r = k / (D / 8), at = At::Q::offset(r, k % (D / 8));
      if (i0 + r >= valid.from && i0 + r < valid.to) continue;
      ptx::st_shared_v4(shared.tile_q(n).base + at, {});
      ptx::st_shared_v4(shared.tile_z_o(n).base + at, {});
    }
    ptx::fence_async();
    ptx::bar_sync(5, 256);
  }
  // Barriers of two phases: a warpgroup may be one tile ahead of the other.
  __device__ __forceinline__ static int shared_by(int group, u32 n) {
    return 1 + 2 * (n % 2) + group;
  }

  __device__ __forceinline__ void run() const {
    const Place at = shared.item().at;
    const int first = shared.item().met.first, tiles = shared.item().met.last - first, j0 = at.row0;
    const u32 all = max(tiles, 0) * plan.group;
    constexpr int sums = queries * D;
    // The thread's sums of the tile before.
    float* to = work.z_q + ((i64{at.b} * x.H + at.head * plan.group) * plan.tiles + first - 1) * sums +
                (group * 128 + threadIdx.x % 128) * 4;
    const Score<S> score(plan.factor);
    Accumulator<16, D> z_k, z_v;
    z_k.fill(0), z_v.fill(0);
    keep(z_k), keep(z_v);
    if (all > 0) shared.ring_kept().wait(0);
    int tile = 0;
#pragma unroll 1
    for (u32 n = 0; n < all; ++n) {
      const auto& rows = shared.rows_of(n);
      Scores s, z_p;
      Operand p, z_a;
      shared.ring_q().wait(n);
      if (x.cu_q) clear_others(n, (shared.item().met.first + tile) * queries);
      begin_ABt<S, D>(s, shared.tile_k(), 64 * group, shared.tile_q(n));  // S = K·Qᵀ
      shared.ring_z_o().wait(n);
      begin_ABt<S, D>(z_p, shared.tile_v(), 64 * group, shared.tile_z_o(n));  // z_P = V·z_Oᵀ
      const bool masked = !covers(rows.every, j0 + 64 * group, 64);
      wait_for_products<1>();
      keep(s);
      if (masked)
        probabilities(s, p, rows, score, j0, true);
      else
        probabilities(s, p, rows, score, j0, false);
      keep(p);
      ptx::hold(to);  // stays as it is while the sums of the last tile leave
      wait_for_products<0>();
      keep(z_p);
      gradients(p, z_p, z_a, rows);
      share(z_a, n);
      ptx::bar_arrive(shared_by(group ^ 1, n), 256);
      begin_AB<S>(z_v, p, shared.tile_z_o(n));  // z_V += P·z_O
      ptx::bar_sync(shared_by(group, n), 256);
      if constexpr (At::transposes) {  // z_V has to be done for lack of registers
        wait_for_products<0>();
        keep(z_v), keep(p);
        shared.ring_z_o().release(n);
      }
      typename At::ZQ part;
      query_gradients(part, n);                 // z_Q = z_Aᵀ·K
      begin_AB<S>(z_k, z_a, shared.tile_q(n));  // z_K += z_A·Q
      wait_for_products<1>();
      keep(part);
      if constexpr (!At::transposes) {
        keep(z_v), keep(p);
        shared.ring_z_o().release(n);
      }
      to += i64{tile == 0 && n > 0 ? plan.tiles - tiles + 1 : 1} * sums;
      int turn = 1;
      if (!plan.free_order) shared.ring_turn().wait(n), turn = shared.turn(n);
      if (turn == 0) {  // the first: there is nothing to add to
#pragma unroll
        for (int k = 0; k < part.parts; ++k) ptx::st_global_v4(to + k * 1024, part.x[0][k]);
      } else if (turn > 0) {
#pragma unroll
        for (int k = 0; k < part.parts; ++k) ptx::red_add_v4(to + k * 1024, part.x[0][k]);
      }
      if (!plan.free_order) shared.ring_added().announce_by_warp(n);
      wait_for_products<0>();
      keep(z_k), keep(z_a);
      shared.ring_q().release(n);
      if (++tile == tiles) tile = 0;
    }
    const Place to_rows = shared.item().at;  // again, rather than in registers all the time
    const int from = to_rows.row0 + row();
    scale(z_k, plan.scale);
    store(z_k, x.z_k.at<S>(to_rows.b, to_rows.head), x.z_k.row, from, x.T, x.d);
    store(z_v, x.z_v.at<S>(to_rows.b, to_rows.head), x.z_v.row, from, x.T, x.dv);
  }

  // z_A = P ⊛ (z_P − u), rounded.
  __device__ __forceinline__ static void gradients(const Operand& p, Scores& z_p, Operand& z_a,
                                                   const Rows<queries>& rows) {
    const StatRows stats{rows.lse, rows.u};
#pragma unroll
    for (int part = 0; part < z_p.parts; ++part) {
      const float2 u = stats.u(Part<false>{0, 8 * part + lane_column()});
      float(&b)[4] = z_p.x[0][part];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 a = unpack(p.x[part / 2][part % 2 * 2 + half], S());
        z_a.x[part / 2][part % 2 * 2 + half] =
            tile::pack(score_gradient(a.x, b[2 * half], 1.f, u.x, 1.f),
                       score_gradient(a.y, b[2 * half + 1], 1.f, u.y, 1.f), S());
      }
    }
  }

  __device__ __forceinline__ void query_gradients(typename At::ZQ& part, u32 n) const {
    if constexpr (At::transposes)
      begin_AtBt<S, 128>(part, shared.tile_k(), 64 * group, shared.tile_z_a(n));
    else
      begin_AB<S, 128>(part, shared.tile_z_a(n), 64 * group, shared.tile_k(), 0);
  }
};

template <class S, int D>
__global__ void __launch_bounds__(Shape<D>::threads, 1)
    gradients(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work,
              const __grid_constant__ Plan plan, const Sections sections) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using At = Shape<D>;
  TG_DYNAMIC_SHARED(memory, 1024);
  const Shared<D> shared{memory};
  if (threadIdx.x == 0) shared.init(plan.free_order);
  if (threadIdx.x < 32) keep_rows<S>(shared, x, work, plan, sections.place(blockIdx.x, false));
  __syncthreads();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), warp = threadIdx.x / 32 % 4;
  if (group == 0) {
    ptx::give_registers<At::producer_registers>();
    if (lane_id() > 0) return;
    if (warp == 0) load<S, D>(shared, x, work, plan);
    if (warp == 1 && !plan.free_order) await_turns<D>(shared, x, work, plan);
    if (warp == 2 && !plan.free_order) end_turns<D>(shared, x, work, plan);
  } else {
    ptx::take_registers<At::consumer_registers>();
    Consumer<S, D>{shared, x, work, plan, group - 1}.run();
  }
#endif
}

}  // namespace tg::cuda::attention::backward_sm90
