// The backward on Hopper (FlashAttention-3) [Stratos, FlashAttention §D]. A block keeps some keys of a key
// head. It loops over tiles of queries, for each query head of the group:
//
//   P = exp(A − ξ), z_A = P ⊛ (V·z_Oᵀ − u)   [keys, queries],  A from S = K·Qᵀ
//   z_V += P·z_O,  z_K += z_A·Q,  z_Q += z_Aᵀ·K in global memory.
//
// One thread loads tiles by TMA. Two others order the additions to z_Q. Two warpgroups of 64 keys each use
// wgmma. P and z_A are left operands in registers. z_A is also stored to shared memory, because z_Q needs it
// from both warpgroups. Blocks add z_Q from registers to one f32 accumulator in global memory, in a fixed
// order, so results are deterministic. In nondeterministic mode no block waits for another.
//
// For f32 split into two f16 values, each GEMM becomes three. Tensor cores round sums towards zero. The
// contributions of a tile to z_V and z_K are therefore accumulated from zero and then added by ordinary
// additions. This needs more registers. Shared memory holds both f16 values, so tiles have 64 or 32 queries.
// Each warpgroup computes 64 columns of z_Q, transposed. At head size 64, the two warpgroups alternate
// instead.
#pragma once

#include "backends/cuda/attention/backward/backward_roles_sm90.cuh"

namespace tg::cuda::attention::backward_sm90 {

// Consumer warpgroup with 64 keys.
template <class S, class At, Options options>
struct Consumer : Steps<S, At, options> {
  using Base = Steps<S, At, options>;
  using Base::shared, Base::x, Base::plan, Base::group;
  using typename Base::PackedTile, typename Base::Scores;
  static constexpr int D = At::D, parts_ahead = At::template parts_ahead<options>;

  __device__ __forceinline__ void run() const {
    const int j0 = shared.item().at.row0, tiles = this->tiles();
    const u32 all = this->passes();
    float* to = this->first_sums() + At::sums;
    const Score<S> score = this->score();
    Accumulator<16, D> z_k, z_v;
    z_k.fill(0), z_v.fill(0);
    keep(z_k), keep(z_v);
    if (all > 0) shared.ring_kept().wait(0);
    bool masked = all > 0 && await_tile(0, j0);
    float2 ahead[parts_ahead];
    if (all > 0) fetch(ahead, 0);
    int tile = 0;
#pragma unroll 1
    for (u32 n = 0; n < all; ++n) {
      const auto& rows = shared.rows_of(n);
      Scores s, z_p;
      PackedTile p, z_a;
      if (x.cu_q) this->clear_others(n, (shared.item().met.first + tile) * At::queries);
      begin_ABt<S, D>(s, shared.tile_k(), 64 * group, shared.tile_q(n));      // S = K·Qᵀ
      begin_ABt<S, D>(z_p, shared.tile_v(), 64 * group, shared.tile_z_o(n));  // z_P = V·z_Oᵀ
      const StatsAhead<parts_ahead> stats{rows.stats(), ahead};
      this->template make_operands<1>(s, z_p, p, z_a, n, stats, score, j0, masked, to);
      begin_AB<S>(z_v, p.term[0], shared.tile_z_o(n));  // z_V += P·z_O
      ptx::bar_sync(this->z_a_for(group, n), 256);
      if constexpr (At::transposes) {  // z_V must be complete, because registers are needed
        wait_for_products<0>();
        keep(z_v), keep(p);
        shared.ring_z_o().release(n);
      }
      typename At::ZQ part;
      query_gradients(part, n);                         // z_Q = z_Aᵀ·K
      begin_AB<S>(z_k, z_a.term[0], shared.tile_q(n));  // z_K += z_A·Q
      if (n + 1 < all) masked = await_tile(n + 1, j0);  // early: z_Q additions delay shared memory
      const Ticket ticket = this->await_ticket(n);
      wait_for_products<1>();
      keep(part);
      if constexpr (!At::transposes) {
        keep(z_v), keep(p);
        shared.ring_z_o().release(n);
      }
      fetch(ahead, min(n + 1, all - 1));
      this->add_or_store(part, to, ticket, n, tile, group);
      this->end_ticket(n);
      wait_for_products<0>();
      keep(z_k), keep(z_a);
      shared.ring_q().release(n);
      ptx::hold(to);
      to += At::sums;
      if (++tile == tiles) tile = 0, to += i64{plan.tiles - tiles} * At::sums;
    }
    this->store_z_k(z_k);
    this->store_z_v(z_v);
  }

  // Waits for the nth tile. Returns whether it needs a mask.
  __device__ __forceinline__ bool await_tile(u32 n, int j0) const {
    shared.ring_q().wait(n), shared.ring_z_o().wait(n);
    return !covers(shared.rows_of(n).every, j0 + 64 * group, 64);
  }
  // Loads ξ of the first fragments.
  __device__ __forceinline__ void fetch(float2 (&ahead)[parts_ahead], u32 n) const {
    const StatRows stats = shared.rows_of(n).stats();
#pragma unroll
    for (int part = 0; part < parts_ahead; ++part) ahead[part] = stats.lse({0, 8 * part + lane_column()});
  }

  __device__ __forceinline__ void query_gradients(typename At::ZQ& part, u32 n) const {
    if constexpr (At::transposes)
      begin_AtBt<S, 128>(part, shared.tile_k(), 64 * group, shared.tile_z_a(n));
    else if constexpr (At::by_columns)
      begin_AB<S, 128>(part, shared.tile_z_a(n), 0, shared.tile_k(), 64 * group);
    else
      begin_AB<S, 128>(part, shared.tile_z_a(n), 64 * group, shared.tile_k(), 0);
  }
};

// Consumer warpgroup for operands that are split into two f16 values.
template <class S, class At, Options options>
struct F16SplitConsumer : Steps<S, At, options> {
  using Base = Steps<S, At, options>;
  using Base::shared, Base::x, Base::plan, Base::group;
  using typename Base::PackedTile, typename Base::Scores, typename Base::T;
  static constexpr int D = At::D;

  __device__ __forceinline__ void run() const {
    const int j0 = shared.item().at.row0, tiles = this->tiles();
    const u32 all = this->passes();
    float* to = this->first_sums();
    const Score<S> score = this->score();
    Accumulator<16, D> z_k, z_v;
    z_k.fill(0), z_v.fill(0);
    if (all > 0) shared.ring_kept().wait(0);
    int tile = 0;
#pragma unroll 1
    for (u32 n = 0; n < all; ++n) {
      const auto& rows = shared.rows_of(n);
      Scores s, z_p;
      PackedTile p, z_a;
      shared.ring_q().wait(n);
      if (x.cu_q) this->clear_others(n, (shared.item().met.first + tile) * At::queries);
      begin_f16_split_ABt<T, D>(s, this->again(shared.tile_k()), 64 * group, shared.tile_q(n));  // S = K·Qᵀ
      shared.ring_z_o().wait(n);
      begin_f16_split_ABt<T, D>(z_p, this->again(shared.tile_v()), 64 * group,
                                shared.tile_z_o(n));  // z_P = V·z_Oᵀ
      this->template make_operands<products_of_f16_split<T>>(s, z_p, p, z_a, n, rows.stats(), score, j0,
                                                             !covers(rows.every, j0 + 64 * group, 64), to);
      add_to_z_v(z_v, p, n);  // z_V += P·z_O
      shared.ring_z_o().release(n);
      ptx::bar_sync(this->z_a_for(group, n), 256);
      to += this->step(n, tile);
      if (At::parts == 2 || static_cast<int>(n % 2) == group) add_z_q(to, n, tile);
      this->end_ticket(n);
      add_to_z_k(z_k, z_a.term[0], n);  // z_K += z_A·Q
      shared.ring_q().release(n);
      if (++tile == tiles) tile = 0;
    }
    this->store_z_k(z_k);
    this->store_z_v(z_v);
  }

  // z_V += P·z_O, in steps of 64 columns.
  __device__ __forceinline__ void add_to_z_v(Accumulator<16, D>& z_v, PackedTile& p, u32 n) const {
    const auto z_o = shared.tile_z_o(n);
#pragma unroll
    for (int column = 0; column < D; column += 64) {
      Accumulator<16, 64> product;
      begin_terms_AB(product, p, z_o, column);
      wait_for_products<0>();
      keep(product), keep(p);
      tile::add(z_v, column / 8, product);
    }
  }
  // z_K += z_A·Q. The low f16 values of z_A are read from shared memory, because they would occupy registers
  // while z_V is computed.
  __device__ __forceinline__ void add_to_z_k(Accumulator<16, D>& z_k, Packed<At::queries>& z_a, u32 n) const {
    const auto high = shared.tile_q(n).template part<2>(0), low = shared.tile_q(n).template part<2>(1);
#pragma unroll
    for (int column = 0; column < D; column += 64) {
      Accumulator<16, 64> product;
      begin_AtB<S, At::queries>(product, shared.tile_z_a(n).template part<2>(1), 64 * group, high, column);
      begin_AB<S>(product, z_a, low, column);
      begin_AB<S>(product, z_a, high, column);
      wait_for_products<0>();
      keep(product), keep(z_a);
      tile::add(z_k, column / 8, product);
    }
  }
  // z_Qᵀ += Kᵀ·z_A
  __device__ __forceinline__ void add_z_q(float* to, u32 n, int tile) const {
    const int nth = At::parts == 2 ? group : 0;
    typename At::ZQ part;
    begin_terms_AtBt<T, At::keys>(part, this->again(shared.tile_k()), 64 * nth, shared.tile_z_a(n));
    wait_for_products<0>();
    keep(part);
    this->add_or_store(part, to, this->await_ticket(n), n, tile, nth);
  }
};

}  // namespace tg::cuda::attention::backward_sm90
