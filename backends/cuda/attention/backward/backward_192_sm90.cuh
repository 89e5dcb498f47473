// The backward on Hopper for head size 192 with values of size 128 (MLA), similar to backward_sm90.cuh. z_K
// and z_V need 160 of 240 registers. S is therefore converted to P before z_P starts, and each GEMM completes
// before another needs its registers. z_Q is computed transposed, in three parts of 64 columns. Each
// warpgroup computes one part. The two warpgroups alternate in computing the third part.
//
// z_Q is computed one tile late. The other warpgroup's z_A has then arrived, so neither warpgroup waits for
// the other. One warpgroup multiplies while the other computes exponentials. A warpgroup's z_Q GEMM also runs
// while the same warpgroup computes exponentials.
#pragma once

#include "backends/cuda/attention/backward/backward_roles_sm90.cuh"

namespace tg::cuda::attention::backward_sm90 {

// Consumer warpgroup with 64 keys.
template <class S, class At, Options options>
struct Consumer192 : Steps<S, At, options> {
  using Base = Steps<S, At, options>;
  using Base::shared, Base::x, Base::plan, Base::group;
  using typename Base::PackedTile, typename Base::Scores;
  using ZQ = typename At::ZQ;
  static constexpr int D = At::K::columns, DV = At::V::columns;

  __device__ __forceinline__ void run() const {
    Accumulator<16, D> z_k;
    Accumulator<16, DV> z_v;
    z_k.fill(0), z_v.fill(0);
    keep(z_k), keep(z_v);
    if (const u32 all = this->passes()) multiply(z_k, z_v, all);
    this->store_z_k(z_k);
    this->store_z_v(z_v);
  }

  __device__ __forceinline__ void multiply(Accumulator<16, D>& z_k, Accumulator<16, DV>& z_v, u32 all) const {
    const int j0 = shared.item().at.row0;
    const Score<S> score = this->score();
    float* to = this->first_sums();
    int tile = 0;  // the tile whose z_Q is added next
    Scores s;
    ZQ part;
    shared.ring_kept().wait(0);
    this->begin_scores(s, 0);
    wait_for_products<0>();
    keep(s);
    // `later`: a tile precedes this one. `more`: a tile follows. They are compile-time constants because the
    // compiler must know which GEMMs are in flight.
    const auto pass = [&](u32 n, auto later, auto more) {
      const auto& rows = shared.rows_of(n);
      Scores z_p;
      PackedTile p, z_a;
      if constexpr (later) {
        ptx::bar_sync(this->z_a_for(this->group, n - 1), 256);
        begin_part(part, this->group, n - 1);
      }
      this->probabilities(s, p, rows, rows.stats(), score, j0, !covers(rows.every, j0 + 64 * group, 64));
      keep(p);
      if constexpr (later) add_own_part(part, to, n - 1, tile);
      shared.ring_z_o().wait(n);
      begin_ABt<S, DV>(z_p, this->again(shared.tile_v()), 64 * group, shared.tile_z_o(n));  // z_P = V·z_Oᵀ
      begin_AB<S>(z_v, p.term[0], shared.tile_z_o(n));                                      // z_V += P·z_O
      wait_for_products<1>();
      keep(z_p);
      this->gradients(p, z_p, z_a, rows, score);
      this->share(z_a, n);
      ptx::bar_arrive(this->z_a_for(group ^ 1, n), 256);
      wait_for_products<0>();
      keep(z_v), keep(p);
      shared.ring_z_o().release(n);
      begin_AB<S>(z_k, z_a.term[0], shared.tile_q(n));  // z_K += z_A·Q
      if constexpr (more) this->begin_scores(s, n + 1);
      wait_for_products<more>();
      keep(z_k), keep(z_a);
      shared.ring_q().release(n);
      if constexpr (later) add_third_part(part, to, n - 1);
      if constexpr (more) {
        wait_for_products<0>();
        keep(s);
      }
    };
    for_each_tile(all, pass);
    ptx::bar_sync(this->z_a_for(group, all - 1), 256);
    begin_part(part, group, all - 1);
    add_own_part(part, to, all - 1, tile);
    add_third_part(part, to, all - 1);
  }
  __device__ __forceinline__ static void for_each_tile(u32 all, auto&& pass) {
    const std::true_type yes;
    const std::false_type no;
    if (all == 1) return pass(0, no, no);
    pass(0, no, yes);
#pragma unroll 1
    for (u32 n = 1; n + 1 < all; ++n) pass(n, yes, yes);
    pass(all - 1, yes, no);
  }

  // z_Qᵀ += Kᵀ·z_A. add_own_part() adds the warpgroup's own part, whose GEMM has started. add_third_part()
  // computes and adds the third part in every other tile.
  __device__ __forceinline__ void add_own_part(ZQ& part, float*& to, u32 n, int& tile) const {
    wait_for_products<0>();
    keep(part);
    to += this->step(n, tile);
    if (++tile == this->tiles()) tile = 0;
    this->add(part, to, this->await_ticket(n).nth);
  }
  __device__ __forceinline__ void add_third_part(ZQ& part, float* to, u32 n) const {
    if (static_cast<int>(n % 2) == group) {
      begin_part(part, 2, n);
      wait_for_products<0>();
      keep(part);
      this->add(part, to + (2 - group) * At::sums_between, this->await_ticket(n).nth);
    }
    this->end_ticket(n);
  }
  __device__ __forceinline__ void begin_part(ZQ& part, int third, u32 n) const {
    begin_AtBt<S, At::keys>(part, this->again(shared.tile_k()), 64 * third, shared.tile_z_a(n));
  }
};

}  // namespace tg::cuda::attention::backward_sm90
