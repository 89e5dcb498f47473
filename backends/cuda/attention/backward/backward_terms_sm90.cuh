// The backward on Hopper of f32 as two f16 terms, as backward_sm90.cuh. Each product is three of terms, and
// those of z_V and z_K start from zero and join their sums by ordinary additions: tensor cores round sums
// towards zero. So they take registers, and shared memory holds both terms: tiles have 64 or 32 queries. z_Q
// is computed transposed, 64 of its columns by each warpgroup, or with heads of 64 by one and the other in
// turn.
#pragma once

#include "backends/cuda/attention/backward/backward_roles_sm90.cuh"

namespace tg::cuda::attention::backward_sm90 {

// A warpgroup of 64 keys.
template <class S, class At, Options options>
struct TermsConsumer : Steps<S, At, options> {
  using Base = Steps<S, At, options>;
  using Base::shared, Base::x, Base::plan, Base::group;
  using typename Base::Operand, typename Base::Scores, typename Base::T;
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
      Operand p, z_a;
      shared.ring_q().wait(n);
      if (x.cu_q) this->clear_others(n, (shared.item().met.first + tile) * At::queries);
      begin_terms_ABt<T, D>(s, here(shared.tile_k()), 64 * group, shared.tile_q(n));  // S = K·Qᵀ
      shared.ring_z_o().wait(n);
      begin_terms_ABt<T, D>(z_p, here(shared.tile_v()), 64 * group, shared.tile_z_o(n));  // z_P = V·z_Oᵀ
      wait_for_products<products_of_terms<T>>();
      keep(s);
      this->probabilities(s, p, rows, score, j0, !covers(rows.every, j0 + 64 * group, 64));
      keep(p);
      ptx::hold(to);  // stays as it is while the sums of the last tile leave
      wait_for_products<0>();
      keep(z_p);
      this->gradients(p, z_p, z_a, rows, score);
      this->share(z_a, n);
      ptx::bar_arrive(this->z_a_for(group ^ 1, n), 256);
      add_to_z_v(z_v, p, n);  // z_V += P·z_O
      shared.ring_z_o().release(n);
      ptx::bar_sync(this->z_a_for(group, n), 256);
      to += this->step(n, tile);
      if (At::parts == 2 || static_cast<int>(n % 2) == group) add_z_q(to, n, tile);
      this->end_turn(n);
      add_to_z_k(z_k, z_a.term[0], n);  // z_K += z_A·Q
      shared.ring_q().release(n);
      if (++tile == tiles) tile = 0;
    }
    const Place at = this->place();
    this->store_z_k(z_k, at);
    this->store_z_v(z_v, at);
  }

  // Descriptors of the tile are computed where they are used: they would take registers all the time.
  template <class Tile>
  __device__ __forceinline__ static Tile here(Tile tile) {
    ptx::keep(tile.base);
    return tile;
  }
  // z_V += P·z_O, 64 columns at a time.
  __device__ __forceinline__ void add_to_z_v(Accumulator<16, D>& z_v, Operand& p, u32 n) const {
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
  // z_K += z_A·Q. The second term of z_A comes from shared memory: it would take registers while z_V is
  // computed.
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
    begin_terms_AtBt<T, At::keys>(part, here(shared.tile_k()), 64 * nth, shared.tile_z_a(n));
    wait_for_products<0>();
    keep(part);
    this->add_or_store(part, to, this->await_turn(n), n, tile, nth);
  }
};

}  // namespace tg::cuda::attention::backward_sm90
