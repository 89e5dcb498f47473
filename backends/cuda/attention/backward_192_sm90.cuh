// The backward on Hopper of heads of 192 with values of 128 (MLA), as backward_sm90.cuh. z_K and z_V take 160
// registers of 240, so S becomes P before z_P starts, and each product is done before another needs its
// registers. z_Q is computed transposed, in three parts of 64 of its columns: one by each warpgroup, the
// third by one and the other in turn.
#pragma once

#include "backends/cuda/attention/backward_roles_sm90.cuh"

namespace tg::cuda::attention::backward_sm90 {

// A warpgroup of 64 keys.
template <class S, class At, Options options>
struct Consumer192 : Steps<S, At, options> {
  using Base = Steps<S, At, options>;
  using Base::shared, Base::x, Base::plan, Base::group;
  using typename Base::Operand, typename Base::Scores;
  static constexpr int D = At::K::columns, DV = At::V::columns;

  __device__ __forceinline__ void run() const {
    const int j0 = shared.item().at.row0, tiles = this->tiles();
    const u32 all = this->passes();
    float* to = this->first_sums();
    const Score<S> score = this->score();
    Accumulator<16, D> z_k;
    Accumulator<16, DV> z_v;
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
      if (x.cu_q) this->clear_others(n, (shared.item().met.first + tile) * At::queries);
      begin_ABt<S, D>(s, shared.tile_k(), 64 * group, shared.tile_q(n));  // S = K·Qᵀ
      wait_for_products<0>();
      keep(s);
      this->probabilities(s, p, rows, score, j0, !covers(rows.every, j0 + 64 * group, 64));
      keep(p);
      ptx::hold(to);  // stays as it is while the sums of the last tile leave
      shared.ring_z_o().wait(n);
      begin_ABt<S, DV>(z_p, shared.tile_v(), 64 * group, shared.tile_z_o(n));  // z_P = V·z_Oᵀ
      begin_AB<S>(z_v, p, shared.tile_z_o(n));                                 // z_V += P·z_O
      wait_for_products<1>();
      keep(z_p);
      this->gradients(p, z_p, z_a, rows, score);
      this->share(z_a, n);
      ptx::bar_arrive(this->z_a_for(group ^ 1, n), 256);
      wait_for_products<0>();
      keep(z_v), keep(p);
      shared.ring_z_o().release(n);
      begin_AB<S>(z_k, z_a, shared.tile_q(n));  // z_K += z_A·Q
      ptx::bar_sync(this->z_a_for(group, n), 256);
      to += this->step(n, tile);
      add_to_z_q(z_k, z_a, to, n);
      if (++tile == tiles) tile = 0;
    }
    const Place at = this->place();
    this->store_z_k(z_k, at);
    this->store_z_v(z_v, at);
  }

  // z_Qᵀ += Kᵀ·z_A, while z_K's product is ended.
  __device__ __forceinline__ void add_to_z_q(Accumulator<16, D>& z_k, Operand& z_a, float* to, u32 n) const {
    typename At::ZQ part;
    begin_part(part, group, n);
    wait_for_products<1>();
    keep(z_k), keep(z_a);
    shared.ring_q().release(n);
    wait_for_products<0>();
    keep(part);
    const int turn = this->await_turn(n).nth;
    this->add(part, to, turn);
    if (static_cast<int>(n % 2) == group) {
      begin_part(part, 2, n);
      wait_for_products<0>();
      keep(part);
      this->add(part, to + (2 - group) * At::sums_between, turn);
    }
    this->end_turn(n);
  }
  __device__ __forceinline__ void begin_part(typename At::ZQ& part, int third, u32 n) const {
    begin_AtBt<S, At::keys>(part, shared.tile_k(), 64 * third, shared.tile_z_a(n));
  }
};

}  // namespace tg::cuda::attention::backward_sm90
