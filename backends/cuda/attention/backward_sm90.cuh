// The backward on Hopper (FlashAttention-3) [Stratos, FlashAttention §D]: a block keeps some keys of a key head and loops
// over tiles of queries, those of each query head of the group,
//
//   P = exp(A − ξ), z_A = P ⊛ (V·z_Oᵀ − u)   [keys, queries],  A from S = K·Qᵀ
//   z_V += P·z_O,  z_K += z_A·Q,  z_Q += z_Aᵀ·K in global memory.
//
// One warp, the producer, copies tiles by TMA. Two warpgroups of 64 keys each multiply by wgmma: P and z_A are left operands
// in registers, and z_A also passes through shared memory, because z_Q needs that of both. All blocks add to the same sums
// of z_Q, straight from registers.
#pragma once

#include "backends/cuda/attention/epilogue.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/key_source_sm90.cuh"
#include "backends/cuda/attention/score_gradient.cuh"
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
  KeyRange every, unused;  // keys that all of them see
  static constexpr int floats = 2 * queries, ints = 2 * queries + 4;
};

template <int D>
struct Shared {
  using At = Shape<D>;
  using Stage = Rows<At::queries>;
  static constexpr int v = At::K::bytes, q = v + At::K::bytes, z_o = q + At::stages * At::Q::bytes,
                       z_a = z_o + At::stages * At::Q::bytes, rows = z_a + 2 * At::ZA::bytes,
                       kept_ring = rows + At::stages * int(sizeof(Stage)), q_ring = kept_ring + Ring<1>::bytes,
                       z_o_ring = q_ring + Ring<At::stages>::bytes, met = z_o_ring + Ring<At::stages>::bytes,
                       bytes = met + int(sizeof(Meeting));
  unsigned char* start;
  u32 base = shared_address(start);

  __device__ typename At::K tile_k() const { return {base}; }
  __device__ typename At::K tile_v() const { return {base + v}; }
  __device__ typename At::Q tile_q(u32 use) const { return {base + q + ring_q().stage(use) * At::Q::bytes}; }
  __device__ typename At::Q tile_z_o(u32 use) const { return {base + z_o + ring_q().stage(use) * At::Q::bytes}; }
  __device__ typename At::ZA tile_z_a(u32 use) const { return {base + z_a + use % 2 * At::ZA::bytes}; }
  __device__ Stage& rows_of(u32 use) const {
    return reinterpret_cast<Stage*>(start + rows)[ring_q().stage(use)];
  }
  __device__ Ring<1> ring_kept() const { return {base + kept_ring}; }  // filled once
  __device__ Ring<At::stages> ring_q() const { return {base + q_ring}; }  // Q and Rows
  __device__ Ring<At::stages> ring_z_o() const { return {base + z_o_ring}; }
  __device__ Meeting& meeting() const { return *reinterpret_cast<Meeting*>(start + met); }
  __device__ void init() const {
    ring_kept().init(8), ring_q().init(8), ring_z_o().init(8);
    ptx::fence_mbarrier_init();
  }
};

// The warp that copies.
template <class S, int D>
__device__ __forceinline__ void load(const Shared<D>& shared, const AttentionCall& x, const Workspace& work,
                                     const Maps& maps, Place at, Meeting met) {
  using At = Shape<D>;
  using Stage = typename Shared<D>::Stage;
  const int tiles = (x.L + At::queries - 1) / At::queries, group = x.H / x.Hk;
  const KeyRange queries = queries_of_sequences(x);
  u32 n = 0;
#pragma unroll 1
  for (int h = at.head * group; h < at.head * group + group; ++h)
#pragma unroll 1
    for (int tile = met.first; tile < met.last; ++tile, ++n) {
      const int i0 = tile * At::queries;
      const bool clean = !x.cu_q || covers(queries, i0, min(At::queries, x.L - i0));
      shared.ring_q().acquire(n);
      if (!clean) copy_rows(shared.tile_q(n), x.q.at<S>(at.b, h), x.q.row, i0, queries, x.d);
      if (lane_id() == 0) {
        const u32 to = shared_address(&shared.rows_of(n)), barrier = shared.ring_q().full(n);
        shared.ring_q().expect(n, sizeof(Stage) + (clean ? At::Q::bytes : 0));
        ptx::bulk_load(to, work.rows + ((i64{at.b} * x.H + h) * tiles + tile) * Stage::floats, Stage::floats * 4, barrier);
        ptx::bulk_load(to + Stage::floats * 4, work.seen + (i64{at.b} * tiles + tile) * Stage::ints, Stage::ints * 4,
                       barrier);
        if (clean) load_boxes(shared.tile_q(n), maps.q, barrier, i0, h, at.b);
      }
      shared.ring_z_o().acquire(n);
      if (!clean) copy_rows(shared.tile_z_o(n), x.z_o.at<S>(at.b, h), x.z_o.row, i0, queries, x.dv);
      if (lane_id() == 0) {
        clean ? shared.ring_z_o().expect(n, At::Q::bytes) : shared.ring_z_o().announce(n);
        if (clean) load_boxes(shared.tile_z_o(n), maps.z_o, shared.ring_z_o().full(n), i0, h, at.b);
      }
    }
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
  int group, row;  // the warp's first row of the block's keys

  // From q·k to P.
  __device__ __forceinline__ void probabilities(Scores& s, const Rows<queries>& rows, const Score<S>& score, int j0,
                                                bool masked) const {
    const Dropout<float> dropout(x);
    const ScoreGradient<S, none, false, StatRows> stage{x, score, dropout, {rows.lse, rows.u}, 0, 0, 0};
    const auto of_part = [&](int, int column, float(&a)[4]) {
      float slope[4];
      stage.probability({0, column}, a, slope);
    };
    for_each_part(of_part, s);
    if (masked) mask<false>(s, rows.seen, row, 0, j0, 0);
  }

  // z_A to shared memory, [queries, keys], where both warpgroups read it.
  __device__ __forceinline__ void share(Operand& z_a, u32 n) const {
    const typename At::ZA to = shared.tile_z_a(n);
    const int lane = lane_id(), warp = row / 16 % 4;
#pragma unroll
    for (int k = 0; k < queries / 16; ++k)
      ptx::stmatrix_trans(to.base + to.offset(16 * k + lane % 8 + lane / 16 * 8, group * 8 + warp * 2 + lane / 8 % 2),
                          z_a.x[k]);
    ptx::fence_async();
  }
  // Barriers of two phases: a warpgroup may be one tile ahead of the other.
  __device__ __forceinline__ static int shared_by(int group, u32 n) { return 1 + 2 * (n % 2) + group; }

  __device__ __forceinline__ void run(Place at, Meeting met) const {
    const int heads = x.H / x.Hk, tiles = max(met.last - met.first, 0), all = tiles * heads, j0 = at.row0;
    const i64 all_tiles = (x.L + queries - 1) / queries;
    constexpr int sums = queries * D;
    float* z_q = work.z_q + ((i64{at.b} * x.H + at.head * heads) * all_tiles + met.first) * sums +
                 (group * 128 + threadIdx.x % 128) * 4;
    float* to = z_q;
    const Score<S> score(x, 0, 0);
    Accumulator<16, D> z_k, z_v;
    z_k.fill(0), z_v.fill(0);
    keep(z_k), keep(z_v);
    if (all > 0) shared.ring_kept().wait(0);
    int tile = met.first;
#pragma unroll 1
    for (u32 n = 0; n < static_cast<u32>(all); ++n) {
      const auto& rows = shared.rows_of(n);
      Scores s, z_p;
      Operand p, z_a;
      shared.ring_q().wait(n);
      begin_ABt<S, D>(s, shared.tile_k(), 64 * group, shared.tile_q(n));  // S = K·Qᵀ
      shared.ring_z_o().wait(n);
      begin_ABt<S, D>(z_p, shared.tile_v(), 64 * group, shared.tile_z_o(n));  // z_P = V·z_Oᵀ
      const bool masked = !covers(rows.every, j0 + 64 * group, 64);
      wait_for_products<1>();
      keep(s);
      if (masked)
        probabilities(s, rows, score, j0, true);
      else
        probabilities(s, rows, score, j0, false);
      if constexpr (At::rounds_first) pack<S>(p, s), keep(p);
      if constexpr (!At::rounds_first) keep(s);
      asm volatile("" ::"l"(to));  // stays as it is while the sums of the last tile leave
      wait_for_products<0>();
      keep(z_p);
      gradients(s, p, z_p, z_a, rows);
      share(z_a, n);
      ptx::bar_arrive(shared_by(group ^ 1, n), 256);
      begin_AB<S>(z_v, p, shared.tile_z_o(n));  // z_V += P·z_O
      ptx::bar_sync(shared_by(group, n), 256);
      if constexpr (At::rounds_first) {  // z_V has to be done for lack of registers
        wait_for_products<0>();
        keep(z_v), keep(p);
        shared.ring_z_o().release(n);
      }
      typename At::ZQ part;
      query_gradients(part, n);                // z_Q = z_Aᵀ·K
      begin_AB<S>(z_k, z_a, shared.tile_q(n));  // z_K += z_A·Q
      wait_for_products<1>();
      keep(part);
      if constexpr (!At::rounds_first) {
        keep(z_v), keep(p);
        shared.ring_z_o().release(n);
      }
      to = tile_of(z_q, tile - met.first);
#pragma unroll
      for (int k = 0; k < part.parts; ++k) ptx::red_add_v4(to + k * 1024, part.x[0][k]);
      wait_for_products<0>();
      keep(z_k), keep(z_a);
      shared.ring_q().release(n);
      if (++tile == met.last) tile = met.first, z_q += all_tiles * sums;
    }
    const int from = j0 + row;
    scale(z_k, static_cast<float>(x.scale));
    store(z_k, x.z_k.at<S>(at.b, at.head), x.z_k.row, from, x.T, x.d);
    store(z_v, x.z_v.at<S>(at.b, at.head), x.z_v.row, from, x.T, x.dv);
  }

  // z_A = P ⊛ (z_P − u), rounded, and P rounded if it is not yet.
  __device__ __forceinline__ void gradients(Scores& s, Operand& p, Scores& z_p, Operand& z_a,
                                            const Rows<queries>& rows) const {
    const StatRows stats{rows.lse, rows.u};
#pragma unroll
    for (int part = 0; part < s.parts; ++part) {
      const float2 u = stats.u(Part<false>{0, 8 * part + lane_column()});
      float(&b)[4] = z_p.x[0][part];
      u32* const words = p.x[part / 2] + part % 2 * 2;
      float a[4];
      if constexpr (At::rounds_first) {
        const float2 low = unpack(words[0], S()), high = unpack(words[1], S());
        a[0] = low.x, a[1] = low.y, a[2] = high.x, a[3] = high.y;
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) a[e] = s.x[0][part][e];
        words[0] = tile::pack(a[0], a[1], S()), words[1] = tile::pack(a[2], a[3], S());
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) b[e] = score_gradient(a[e], b[e], 1.f, e % 2 ? u.y : u.x, 1.f);
      z_a.x[part / 2][part % 2 * 2] = tile::pack(b[0], b[1], S());
      z_a.x[part / 2][part % 2 * 2 + 1] = tile::pack(b[2], b[3], S());
    }
  }

  __device__ __forceinline__ void query_gradients(typename At::ZQ& part, u32 n) const {
    if constexpr (At::transposes)
      begin_AtBt<S, 128>(part, shared.tile_k(), 64 * group, shared.tile_z_a(n));
    else
      begin_AB<S, 128>(part, shared.tile_z_a(n), 64 * group, shared.tile_k(), 0);
  }
  // The tile-th tile of sums from z_q on. An address known earlier would wait until the sums before have left.
  __device__ __forceinline__ static float* tile_of(float* z_q, int tile) {
    asm volatile("" : "+r"(tile));
    return z_q + i64{tile} * (queries * D);
  }
};

template <class S, int D>
__global__ void __launch_bounds__(Shape<D>::threads, 1)
    gradients(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work,
              const __grid_constant__ Maps maps, const Sections sections) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using At = Shape<D>;
  TG_DYNAMIC_SHARED(memory, 1024);
  const Shared<D> shared{memory};
  const Place at = sections.place(blockIdx.x, false);
  if (threadIdx.x == 0) shared.init();
  if (threadIdx.x < 32) {
    const int tiles = (x.L + At::queries - 1) / At::queries;
    const Meeting met = tiles_that_meet(work.some + i64{at.b} * tiles, tiles, at.row0, at.row0 + At::keys);
    if (lane_id() == 0) shared.meeting() = met;
    __syncwarp();
    if (met.first < met.last) {
      const bool some_only = (x.lengths || x.cu_k) && !covers(met.keys, at.row0, At::keys);
      if (some_only) {
        copy_rows(shared.tile_k(), x.k.at<S>(at.b, at.head), x.k.row, at.row0, met.keys, x.d);
        copy_rows(shared.tile_v(), x.v.at<S>(at.b, at.head), x.v.row, at.row0, met.keys, x.dv);
        if (lane_id() == 0) shared.ring_kept().announce(0);
      } else if (lane_id() == 0) {
        shared.ring_kept().expect(0, 2 * At::K::bytes);
        load_boxes(shared.tile_k(), maps.k, shared.ring_kept().full(0), at.row0, at.head, at.b);
        load_boxes(shared.tile_v(), maps.v, shared.ring_kept().full(0), at.row0, at.head, at.b);
      }
    }
  }
  __syncthreads();
  const Meeting met = shared.meeting();
  const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
  if (group == 0) {
    ptx::give_registers<24>();
    if (threadIdx.x < 32) load<S, D>(shared, x, work, maps, at, met);
  } else {
    ptx::take_registers<240>();
    Consumer<S, D>{shared, x, work, group - 1, (group - 1) * 64 + static_cast<int>(threadIdx.x / 32 % 4) * 16}.run(at, met);
  }
#endif
}

}  // namespace tg::cuda::attention::backward_sm90
