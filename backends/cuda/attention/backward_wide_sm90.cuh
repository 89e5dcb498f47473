// The backward of wide heads on Hopper, as backward_sm90.cuh but for who multiplies what. z_K and z_V of 128
// keys would not fit into the registers, so a block keeps 64 keys, and each warpgroup has the sums of all of
// them:
//
//   first:   S = K·Qᵀ,  P = exp(A − ξ),        z_V += P·z_O      and half of the columns of z_Q = z_Aᵀ·K
//   second:  z_P = V·z_Oᵀ,  z_A = P ⊛ (z_P − u),  z_K += z_A·Q      and the other half
//
// P passes from the first to the second through shared memory, from thread to thread, and z_A back, as an
// operand. While one computes exponentials or z_A, the other's products run.
#pragma once

#include "backends/cuda/attention/backward_roles_sm90.cuh"

namespace tg::cuda::attention::backward_sm90 {

template <class S, class At, Options options>
struct WideConsumer : Steps<S, At, options> {
  using Base = Steps<S, At, options>;
  using Base::shared, Base::x, Base::plan;
  using typename Base::Operand, typename Base::Scores;
  static constexpr int D = At::K::columns, DV = At::V::columns;
  // Named barriers: P is there; z_A is there, for the first warpgroup and for the second.
  enum { p_shared = 1, z_a_shared, z_a_shared_by_second };

  // P of a thread, for the same thread of the other warpgroup.
  __device__ __forceinline__ u32 words() const { return shared.words_of_p() + threadIdx.x % 128 * 16; }
  __device__ __forceinline__ void send(const Operand& p) const {
#pragma unroll
    for (int k = 0; k < At::queries / 16; ++k)
      ptx::st_shared_v4(words() + k * 2048, {p.x[k][0], p.x[k][1], p.x[k][2], p.x[k][3]});
    ptx::bar_arrive(p_shared, 256);
  }
  __device__ __forceinline__ void receive(Operand& p) const {
    ptx::bar_sync(p_shared, 256);
#pragma unroll
    for (int k = 0; k < At::queries / 16; ++k) {
      const uint4 v = ptx::ld_shared_v4(words() + k * 2048);
      p.x[k][0] = v.x, p.x[k][1] = v.y, p.x[k][2] = v.z, p.x[k][3] = v.w;
    }
  }

  __device__ __forceinline__ void run_first() const {
    const int j0 = shared.item().at.row0;
    const u32 all = this->passes();
    const Score<S> score(plan.factor, plan.cap);
    Scores s;
    Accumulator<16, DV> z_v;
    z_v.fill(0);
    keep(z_v);
    Cursor at{this->first_sums(), 0};
    const auto begin = [&](u32 n) { begin_scores(s, n, at.tile); };
    start(all, s, begin);
#pragma unroll 1
    for (u32 n = 0; n < all; ++n) {
      const auto& rows = shared.rows_of(n);
      Operand p;
      this->probabilities(s, p, rows, score, j0, !covers(rows.every, j0, At::keys));
      shared.ring_q().release(n);
      send(p);
      shared.ring_z_o().wait(n);
      begin_AB<S>(z_v, p, shared.tile_z_o(n));  // z_V += P·z_O
      ptx::bar_sync(z_a_shared, 256);
      add_to_z_q<0>(n, all, at, s, begin, [&] {
        keep(z_v), keep(p);
        shared.ring_z_o().release(n);
      });
    }
    this->store_z_v(z_v, this->place());
  }

  __device__ __forceinline__ void run_second() const {
    const u32 all = this->passes();
    const Score<S> score(plan.factor, plan.cap);
    Scores z_p;
    Accumulator<16, D> z_k;
    z_k.fill(0);
    keep(z_k);
    Cursor at{this->first_sums(), 0};
    const auto begin = [&](u32 n) { begin_z_p(z_p, n, at.tile); };
    start(all, z_p, begin);
#pragma unroll 1
    for (u32 n = 0; n < all; ++n) {
      Operand p, z_a;
      shared.ring_z_o().release(n);
      shared.ring_q().wait(n);
      receive(p);
      this->gradients(p, z_p, z_a, shared.rows_of(n), score);
      this->share(z_a, n);
      ptx::bar_arrive(z_a_shared, 256);
      begin_AB<S>(z_k, z_a, shared.tile_q(n));  // z_K += z_A·Q
      ptx::bar_sync(z_a_shared_by_second, 128);
      add_to_z_q<D / 2>(n, all, at, z_p, begin, [&] {
        keep(z_k), keep(z_a);
        shared.ring_q().release(n);
      });
    }
    this->store_z_k(z_k, this->place());
  }

  // The thread's sums of a tile of z_Q, and which tile of its head it is.
  struct Cursor {
    float* to;
    int tile;
  };

  // S = K·Qᵀ of the nth tile, and z_P = V·z_Oᵀ.
  __device__ __forceinline__ void begin_scores(Scores& s, u32 n, int tile) const {
    shared.ring_q().wait(n);
    if (x.cu_q) this->clear_others(n, (shared.item().met.first + tile) * At::queries);
    begin_ABt<S, D>(s, shared.tile_k(), 0, shared.tile_q(n));
  }
  __device__ __forceinline__ void begin_z_p(Scores& z_p, u32 n, int tile) const {
    shared.ring_z_o().wait(n);
    if (x.cu_q) this->clear_others(n, (shared.item().met.first + tile) * At::queries);
    begin_ABt<S, DV>(z_p, shared.tile_v(), 0, shared.tile_z_o(n));
  }
  // The first tile's.
  template <class Begin>
  __device__ __forceinline__ void start(u32 all, Scores& of_first, Begin&& begin) const {
    if (all == 0) return;
    shared.ring_kept().wait(0);
    begin(0);
    wait_for_products<0>();
    keep(of_first);
  }

  // z_Q = z_Aᵀ·K, some columns. Sums leave while further products run: those of other columns, then `begin`,
  // which computes `scores` of the next tile. `leave` is called when the product before them is done.
  template <int column, class Begin, class Leave>
  __device__ __forceinline__ void add_to_z_q(u32 n, u32 all, Cursor& at, Scores& scores, Begin&& begin,
                                             Leave&& leave) const {
    Accumulator<16, 64> last;
    auto& first = scores;  // whose registers nobody needs now
    begin_AB<S, At::keys>(first, shared.tile_z_a(n), 0, shared.tile_k(), column);
    wait_for_products<1>();
    leave();
    at.to += this->step(n, at.tile);
    if (++at.tile == this->tiles()) at.tile = 0;
    begin_AB<S, At::keys>(last, shared.tile_z_a(n), 0, shared.tile_k(), column + 64);
    wait_for_products<1>();
    keep(first);
    const int turn = this->await_turn(n).nth;
    this->add(first, at.to, turn);
    float* const to = at.to + 64 * At::queries;
    if (n + 1 < all) {
      begin(n + 1);
      wait_for_products<1>();
      keep(last);
      this->add(last, to, turn);
      this->end_turn(n);
      wait_for_products<0>();
      keep(scores);
    } else {
      wait_for_products<0>();
      keep(last);
      this->add(last, to, turn);
      this->end_turn(n);
    }
  }
};

}  // namespace tg::cuda::attention::backward_sm90
