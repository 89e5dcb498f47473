// The backward of wide heads on Hopper. It differs from backward_sm90.cuh in the roles of the warpgroups. The
// accumulators z_K and z_V of 128 keys do not fit in the registers. A block therefore keeps 64 keys, and each
// warpgroup processes all of them:
//
//   first:   S = K·Qᵀ,  P = exp(A − ξ),        z_V += P·z_O      and a quarter of the columns of z_Q = z_Aᵀ·K
//   second:  z_P = V·z_Oᵀ,  z_A = P ⊛ (z_P − u),  z_K += z_A·Q      and another quarter of them
//
// A block with 64 keys would add as many z_Q elements as a block with 128 keys, and a multiprocessor sends
// these additions slowly. Two blocks with 64 keys each therefore form a cluster. They process the same query
// tiles and exchange z_A. Each block computes half of the columns of z_Q for all 128 keys. It therefore also
// keeps the other block's K for these columns.
//
// The first warpgroup passes P to the second through shared memory in register order. z_A is stored to the
// same buffer as an MMA operand. The first GEMM of the next tile starts before the z_Q GEMMs. The other
// block's z_A has time to arrive in the meantime. While one warpgroup computes exponentials or z_A, the other
// warpgroup's GEMMs run.
#pragma once

#include "backends/cuda/attention/backward/backward_roles_sm90.cuh"

namespace tg::cuda::attention::backward_sm90 {

template <class S, class At, Options options>
struct WideConsumer : Steps<S, At, options> {
  using Base = Steps<S, At, options>;
  using Base::shared, Base::x, Base::plan, Base::group;
  using typename Base::PackedTile, typename Base::Scores;
  static constexpr int D = At::K::columns, DV = At::V::columns;
  static constexpr int p_shared = 1;  // named barrier
  using ZQ = typename At::ZQ;

  // send() stores a thread's P in the buffer of the warp's z_A. The same thread of the other warpgroup
  // receives it.
  __device__ __forceinline__ void send(const PackedTile& p, u32 n) const {
#pragma unroll
    for (int k = 0; k < At::queries / 16; ++k)
      ptx::st_shared_v4(this->place_of_z_a(n, k),
                        {p.term[0].x[k][0], p.term[0].x[k][1], p.term[0].x[k][2], p.term[0].x[k][3]});
    ptx::bar_arrive(p_shared, 256);
  }
  __device__ __forceinline__ void receive(PackedTile& p, u32 n) const {
    ptx::bar_sync(p_shared, 256);
#pragma unroll
    for (int k = 0; k < At::queries / 16; ++k) {
      const uint4 v = ptx::ld_shared_v4(this->place_of_z_a(n, k));
      p.term[0].x[k][0] = v.x, p.term[0].x[k][1] = v.y, p.term[0].x[k][2] = v.z, p.term[0].x[k][3] = v.w;
    }
    __syncwarp();
  }

  __device__ __forceinline__ void run() const {
    if (group == 0)
      run_first();
    else
      run_second();
  }
  __device__ __forceinline__ void run_first() const {
    Accumulator<16, DV> z_v;
    z_v.fill(0);
    keep(z_v);
    if (const u32 all = this->passes()) multiply_first(z_v, all);
    this->store_z_v(z_v);
  }
  __device__ __forceinline__ void multiply_first(Accumulator<16, DV>& z_v, u32 all) const {
    const int j0 = shared.item().at.row0;
    const Score<S> score = this->score();
    const auto probabilities = [&](Scores& s, PackedTile& p, u32 n) {
      const auto& rows = shared.rows_of(n);
      this->probabilities(s, p, rows, rows.stats(), score, j0, !covers(rows.every, j0, At::keys));
      shared.ring_q().release_to_both(n);
    };
    Scores s;
    PackedTile p;
    ZQ z_q;
    z_q.fill(0);
    float* to = first_sums();
    shared.ring_kept().wait(0);
    this->begin_scores(s, 0);
    wait_for_products<0>();
    keep(s);
    probabilities(s, p, 0);
    const auto pass = [&](u32 n, auto more) {
      shared.ring_z_a().acquire_of_cluster(n);
      send(p, n);
      shared.ring_z_o().wait(n);
      begin_AB<S>(z_v, p.term[0], shared.tile_z_o(n));  // z_V += P·z_O
      if constexpr (more) this->begin_scores(s, n + 1);
      if (n > 0) add_to_z_q(z_q, n - 1, to);
      shared.ring_z_a().wait(n);
      wait_for_products<more>();
      keep(z_v), keep(p);
      shared.ring_z_o().release_to_both(n);
      begin_z_q(z_q, n);
      if constexpr (more) {
        wait_for_products<2>();
        keep(s);
        probabilities(s, p, n + 1);
      }
      wait_for_products<0>();
      keep(z_q);
      shared.ring_z_a().release(n);
      shared.ring_passed().release_to(ptx::cluster_rank() ^ 1, n);
    };
    for_each_tile(all, pass);
    add_to_z_q(z_q, all - 1, to);
  }

  __device__ __forceinline__ void run_second() const {
    Accumulator<16, D> z_k;
    z_k.fill(0);
    keep(z_k);
    if (const u32 all = this->passes()) multiply_second(z_k, all);
    this->store_z_k(z_k);
  }
  __device__ __forceinline__ void multiply_second(Accumulator<16, D>& z_k, u32 all) const {
    const Score<S> score = this->score();
    Scores z_p;
    float* to = first_sums();
    shared.ring_kept().wait(0);
    begin_z_p(z_p, 0);
    wait_for_products<0>();
    keep(z_p);
    shared.ring_z_o().release_to_both(0);
    const auto pass = [&](u32 n, auto more) {
      PackedTile p, z_a;
      ZQ z_q;
      shared.ring_q().wait(n);
      receive(p, n);
      this->gradients(p, z_p, z_a, shared.rows_of(n), score);
      this->share(z_a, n);
      shared.ring_z_a().announce_by_warp(n);
      begin_AB<S>(z_k, z_a.term[0], shared.tile_q(n));  // z_K += z_A·Q
      if constexpr (more) begin_z_p(z_p, n + 1);
      wait_for_products<more>();
      keep(z_k), keep(z_a);
      shared.ring_q().release_to_both(n);
      shared.ring_z_a().wait(n);
      begin_z_q(z_q, n);
      if constexpr (more) {
        wait_for_products<2>();
        keep(z_p);
        this->shared.ring_z_o().release_to_both(n + 1);
      }
      wait_for_products<0>();
      keep(z_q);
      shared.ring_z_a().release(n);
      shared.ring_passed().release_to(ptx::cluster_rank() ^ 1, n);
      add_to_z_q(z_q, n, to);
    };
    for_each_tile(all, pass);
  }

  // Calls pass(n, more). `more` is a compile-time constant because the compiler must know which GEMMs are in
  // flight.
  __device__ __forceinline__ static void for_each_tile(u32 all, auto&& pass) {
#pragma unroll 1
    for (u32 n = 0; n + 1 < all; ++n) pass(n, std::true_type());
    pass(all - 1, std::false_type());
  }

  __device__ __forceinline__ float* first_sums() const {
    return Base::first_sums() + ptx::cluster_rank() * (2 * At::sums_between);
  }

  // Issues z_P = V·z_Oᵀ of the nth tile.
  __device__ __forceinline__ void begin_z_p(Scores& z_p, u32 n) const {
    shared.ring_z_o().wait(n);
    if (x.cu_q) this->clear_others(n, (shared.item().met.first + n % this->tiles()) * At::queries);
    begin_ABt<S, DV>(z_p, shared.tile_v(), 0, shared.tile_z_o(n));
  }

  // Issues z_Q = z_Aᵀ·K for the warpgroup's columns: one GEMM for this block's keys and one GEMM for the
  // other block's keys.
  __device__ __forceinline__ void begin_z_q(ZQ& z_q, u32 n) const {
    const int column = group * D / 4;
    begin_AB<S, At::keys>(z_q, shared.tile_z_a(n), 0, shared.tile_k(),
                          ptx::cluster_rank() * At::OthersK::columns + column);
    shared.ring_passed().wait(n);
    begin_adding_AB<S, At::keys>(z_q, shared.others_z_a(), 0, shared.others_k(), column);
  }
  // Adds z_Q when the order of blocks permits.
  __device__ __forceinline__ void add_to_z_q(const ZQ& z_q, u32 n, float*& to) const {
    to += this->step(n, n % this->tiles());
    this->add(z_q, to, this->await_ticket(n).nth);
    this->end_ticket(n);
  }
};

}  // namespace tg::cuda::attention::backward_sm90
