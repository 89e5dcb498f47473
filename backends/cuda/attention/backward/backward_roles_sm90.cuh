// Shared parts of Hopper's backward kernels (backward_sm90.cuh, backward_192_sm90.cuh,
// backward_wide_sm90.cuh):
// - the layout of a block's shared memory
// - the producer threads: they load tiles and order the additions to z_Q
// - the consumer steps that all of these kernels have in common
#pragma once

#include "backends/cuda/attention/ropes.h"
#include "backends/cuda/attention/shapes.h"
#include "backends/cuda/attention/shapes_sm90.h"
#include "backends/cuda/attention/stages/epilogue.cuh"
#include "backends/cuda/attention/stages/key_source_sm90.cuh"
#include "backends/cuda/attention/stages/score_gradient.cuh"
#include "backends/cuda/kernels/rotation.cuh"
#include "backends/cuda/tile/mma_sm90.cuh"
#include "backends/cuda/tile/pipeline_sm90.cuh"

namespace tg::cuda::attention::backward_sm90 {

using namespace tile;

// A TileShape that applies RoPE to z_Q and z_K before they are stored.
template <class TileShape>
struct Rotated : TileShape {
  static constexpr bool rotates = true;
  // Fewer parts are loaded ahead than without RoPE, because Factors needs registers.
  template <Options options>
  static constexpr int parts_ahead = 8;
};
template <class At>
concept IsRotated = requires {
  At::rotates;
};
struct NoRopes {};
template <class At>
using RopesOf = std::conditional_t<IsRotated<At>, Ropes, NoRopes>;
template <class At>
struct PlanOf : Plan {
  [[no_unique_address]] RopesOf<At> ropes;
};

// Per-query data that is loaded with each tile of queries.
template <int queries>
struct Rows {
  float lse[queries], u[queries];  // ξ in units of log 2
  VisibleKeys<queries> seen;
  KeyRange every, some;  // keys that all queries see; keys that at least one sees
  static constexpr int floats = 2 * queries, ints = 2 * queries + 4;
  __device__ __forceinline__ StatRows stats() const { return {lse, u}; }
};

// A block's position, and the query tiles that see its keys.
struct WorkItem {
  TilePosition at;
  Meeting met;
  float factor, unit;  // factors of q·k and z_P, for split operands
};

// Returns the exponent e for which (z_P·2^(z_o + v) − u)·2^e times P·2^room_for_p equals z_A·2^of_z_a().
__device__ __forceinline__ int power_of_difference(const Powers& p) {
  return Powers::room_for_z_a - Powers::room_for_p + p.z_a;
}

// A block's position in the order of additions to a tile's z_Q. `nth` is the position, or −1 if the block has
// nothing to add. The last block stores the result.
struct Ticket {
  int nth;
  bool last;
};

template <class At>
struct Shared {
  using Stage = Rows<At::queries>;
  static constexpr int v = At::K::bytes, q = v + At::V::bytes, z_o = q + At::stages * At::Q::bytes,
                       z_a = z_o + At::stages * At::ZO::bytes, others = z_a + At::z_a_stages * At::ZA::bytes,
                       sums = others + At::others_bytes, rows = sums + (At::last_stores ? At::sums * 4 : 0),
                       kept_ring = rows + At::stages * int(sizeof(Stage)),
                       q_ring = kept_ring + Ring<1>::bytes, z_o_ring = q_ring + Ring<At::stages>::bytes,
                       ticket_ring = z_o_ring + Ring<At::stages>::bytes,
                       added_ring = ticket_ring + Ring<2>::bytes, z_a_ring = added_ring + Ring<2>::bytes,
                       passed_ring = z_a_ring + Ring<1>::bytes, item_at = passed_ring + Ring<1>::bytes,
                       ticket_at = item_at + aligned(sizeof(WorkItem), 16),
                       bytes = ticket_at + 2 * int(sizeof(Ticket));
  unsigned char* start;
  u32 base = shared_address(start);

  __device__ typename At::K tile_k() const { return {base}; }
  __device__ typename At::V tile_v() const { return {base + v}; }
  __device__ typename At::Q tile_q(u32 use) const { return {base + q + ring_q().stage(use) * At::Q::bytes}; }
  __device__ typename At::ZO tile_z_o(u32 use) const {
    return {base + z_o + ring_q().stage(use) * At::ZO::bytes};
  }
  __device__ typename At::ZA tile_z_a(u32 use) const {
    return {base + z_a + use % At::z_a_stages * At::ZA::bytes};
  }
  __device__ typename At::OthersK others_k() const { return {base + others}; }
  __device__ typename At::ZA others_z_a() const { return {base + others + At::OthersK::bytes}; }
  // For the last block: the tile's z_Q, as accumulated by the previous blocks.
  __device__ u32 sums_so_far() const { return base + sums; }
  __device__ Stage& rows_of(u32 use) const {
    return reinterpret_cast<Stage*>(start + rows)[ring_q().stage(use)];
  }
  __device__ Ring<1> ring_kept() const { return {base + kept_ring}; }     // filled once
  __device__ Ring<At::stages> ring_q() const { return {base + q_ring}; }  // Q and Rows
  __device__ Ring<At::stages> ring_z_o() const { return {base + z_o_ring}; }
  // ring_ticket is full when the block may add to the tile's z_Q. For the last block, the sums so far have
  // then arrived, too. ring_added is full when the block has added.
  __device__ Ring<2> ring_ticket() const { return {base + ticket_ring}; }
  __device__ Ring<2> ring_added() const { return {base + added_ring}; }
  // For clusters:
  // - ring_z_a is full when z_A has been stored. It is empty when the buffer of z_A may receive P.
  // - ring_passed is full when the other block's z_A has arrived. It is empty when this block's z_A may be
  //   copied to the other block.
  __device__ Ring<1> ring_z_a() const { return {base + z_a_ring}; }
  __device__ Ring<1> ring_passed() const { return {base + passed_ring}; }
  __device__ Ticket& ticket(u32 use) const { return reinterpret_cast<Ticket*>(start + ticket_at)[use % 2]; }
  __device__ WorkItem& item() const { return *reinterpret_cast<WorkItem*>(start + item_at); }
  __device__ void init(bool nondeterministic) const {
    constexpr int warps = 8 * At::blocks;
    ring_kept().init(8), ring_q().init(nondeterministic ? warps : warps + 1), ring_z_o().init(warps),
        ring_ticket().init(1), ring_added().init(1, 8);
    if (At::blocks > 1) ring_z_a().init(9, 4), ring_passed().init(8);
    ptx::fence_mbarrier_init();
  }
};

// State shared by all roles of a block, and the producer threads. Operands have type S.
template <class S, class At>
struct Block {
  using Stage = typename Shared<At>::Stage;
  const Shared<At>& shared;
  const AttentionCall& x;
  const Workspace& work;
  const PlanOf<At>& plan;

  // Query tiles that the block processes: tiles() per query head, passes() over all query heads of the group.
  __device__ __forceinline__ int tiles() const { return shared.item().met.last - shared.item().met.first; }
  __device__ __forceinline__ u32 passes() const { return max(tiles(), 0) * plan.group; }

  // Starts loading the block's keys and values, and finds the query tiles that see them. Called by one warp,
  // before the roles diverge.
  __device__ __forceinline__ void keep_rows(TilePosition at) const {
    const int rank = At::blocks > 1 ? ptx::cluster_rank() : 0, row0 = at.row0,
              others_row = row0 + (rank ^ 1) * At::keys, column = rank * At::OthersK::columns;  // of z_Q
    at.row0 += rank * At::keys;
    const auto fetch = [&] {
      const u32 barrier = shared.ring_kept().full(0);
      shared.ring_kept().expect(0, At::K::bytes + At::V::bytes + (At::blocks > 1 ? At::OthersK::bytes : 0));
      load_boxes(shared.tile_k(), plan.k, barrier, at.row0, at.head, at.b);
      load_boxes(shared.tile_v(), plan.v, barrier, at.row0, at.head, at.b);
      if constexpr (At::blocks > 1)
        load_boxes(shared.others_k(), plan.k, barrier, others_row, at.head, at.b, column);
    };
    const bool at_once = !x.lengths && !x.cu_k;  // false: memory of some keys may contain anything
    if (at_once && lane_id() == 0) fetch();
    const Meeting met =
        tiles_that_meet(work.some + i64{at.b} * plan.tiles, plan.tiles, row0, row0 + At::keys * At::blocks);
    if (lane_id() == 0) {
      shared.item() = {at, met};
      if constexpr (At::split) {
        const Powers& p = plan.powers[at.b * x.Hk + at.head];
        shared.item().factor = plan.factor * power_of_two(-p.q - p.k);
        shared.item().unit = power_of_two(power_of_difference(p));
      }
    }
    if (met.first >= met.last) {
      if (at_once && lane_id() == 0) shared.ring_kept().wait(0);  // loads must finish before the block exits
    } else if (!at_once && !covers(met.keys, row0, At::keys * At::blocks)) {
      const S *const k = x.k.template at<S>(at.b, at.head), *const v = x.v.template at<S>(at.b, at.head);
      copy_rows(shared.tile_k(), k, x.k.row, at.row0, met.keys, size_in_memory<At>(x.k, x.d));
      copy_rows(shared.tile_v(), v, x.v.row, at.row0, met.keys, size_in_memory<At>(x.v, x.dv));
      if constexpr (At::blocks > 1)
        copy_rows(shared.others_k(), k + column, x.k.row, others_row, met.keys, x.d - column);
      if (lane_id() == 0) shared.ring_kept().announce(0);
    } else if (!at_once && lane_id() == 0) {
      fetch();
    }
  }

  // Loading thread.
  __device__ __forceinline__ void load() const {
    const int b = shared.item().at.b, first = shared.item().met.first, tiles = this->tiles();
    int h = shared.item().at.head * plan.group, tile = 0;
    const float* rows = work.rows + ((i64{b} * x.H + h) * plan.tiles + first) * Stage::floats;
    const int* seen = work.seen + (i64{b} * plan.tiles + first) * Stage::ints;
    const auto acquire = [](auto ring, u32 n) {
      if constexpr (At::blocks > 1)
        ring.acquire_of_cluster(n);
      else
        ring.acquire(n);
    };
    const auto fetch = [&](auto tile, const CUtensorMap& map, u32 barrier, int i0) {
      if constexpr (At::blocks > 1)
        load_half_for_both(tile, map, barrier, i0, h, b);
      else
        load_boxes(tile, map, barrier, i0, h, b);
    };
#pragma unroll 1
    for (u32 n = 0, all = passes(); n < all; ++n) {
      const u32 to = shared_address(&shared.rows_of(n)), barrier = shared.ring_q().full(n);
      const int i0 = (first + tile) * At::queries;
      acquire(shared.ring_q(), n);
      shared.ring_q().expect(n, At::Q::bytes + sizeof(Stage));
      ptx::bulk_load(to, rows, Stage::floats * 4, barrier);
      ptx::bulk_load(to + Stage::floats * 4, seen + tile * Stage::ints, Stage::ints * 4, barrier);
      fetch(shared.tile_q(n), plan.q, barrier, i0);
      acquire(shared.ring_z_o(), n);
      shared.ring_z_o().expect(n, At::ZO::bytes);
      fetch(shared.tile_z_o(n), plan.z_o, shared.ring_z_o().full(n), i0);
      rows += Stage::floats;
      if (++tile < tiles) continue;
      rows += i64{plan.tiles - tiles} * Stage::floats;
      tile = 0, ++h;
    }
  }

  // Role of one thread of each block of a cluster. It copies z_A to the other block, and signals when the
  // other block's z_A has arrived here.
  __device__ __forceinline__ void pass_z_a() const {
    const Ring<1> own = shared.ring_z_a(), passed = shared.ring_passed();
    const u32 other = ptx::cluster_rank() ^ 1, all = passes();
#pragma unroll 1
    for (u32 n = 0; n < all; ++n) {
      passed.expect(n, At::ZA::bytes);
      own.wait(n);
      passed.acquire_of_cluster(n);
      ptx::bulk_copy_to(ptx::shared_of(shared.others_z_a().base, other), shared.tile_z_a(n).base,
                        At::ZA::bytes, ptx::shared_of(passed.full(n), other));
      passed.wait(n);
      ptx::mbarrier_arrive_at(ptx::shared_of(own.empty(n), other));
    }
  }

  // await_tickets() is the role of a thread that waits until the block may add to each tile. end_tickets() is
  // the role of a thread that then admits the next block.
  __device__ __forceinline__ void await_tickets() const {
    for_each_ticket([&](u32 n, const int* counter) {
      shared.ring_q().wait(n);
      const Ticket ticket = ticket_of(shared.rows_of(n).some, shared.item().at.row0);
      shared.ring_q().release_by_thread(n);
      shared.ring_ticket().acquire(n);
      while (ticket.nth >= 0 && ptx::load_acquire(counter) != ticket.nth) {
      }
      shared.ticket(n) = ticket;
      if (At::last_stores && ticket.last && ticket.nth > 0) {
        if (n > 0) shared.ring_added().wait(n - 1);  // the buffer may contain the previous tile's sums
        ptx::fence_async_global();
        shared.ring_ticket().expect(n, At::sums * 4);
        ptx::bulk_load(shared.sums_so_far(), work.z_q + (counter - work.counters) * At::sums, At::sums * 4,
                       shared.ring_ticket().full(n));
      } else {
        shared.ring_ticket().announce(n);
      }
    });
  }
  __device__ __forceinline__ void end_tickets() const {
    for_each_ticket([&](u32 n, int* counter) {
      shared.ring_added().wait(n);
      if (shared.ticket(n).nth >= 0) ptx::add_release(counter, 1);
      shared.ring_ticket().release_by_thread(n);
    });
  }

 private:
  // All blocks of a key head add to the z_Q of a query tile. They do so in ascending order of keys. The
  // blocks of a cluster add to different columns. A block waits only for blocks of earlier clusters in the
  // grid.
  __device__ __forceinline__ static Ticket ticket_of(KeyRange some, int row0) {
    constexpr int keys = At::keys * At::blocks;
    const int nth = row0 / keys;
    if (some.from >= (nth + 1) * keys || some.to <= nth * keys) return {-1, false};
    return {nth - some.from / keys, some.to <= (nth + 1) * keys};
  }
  // Calls f(n, counter) for each of the block's query tiles. `counter` counts the additions to the nth one.
  __device__ __forceinline__ void for_each_ticket(auto&& f) const {
    const TilePosition at = shared.item().at;
    const int first = shared.item().met.first, tiles = this->tiles();
    int* counter =
        work.counters + ((i64{at.b} * x.H + at.head * plan.group) * plan.tiles + first) * At::blocks;
    if constexpr (At::blocks > 1) counter += ptx::cluster_rank();
    int tile = 0;
#pragma unroll 1
    for (u32 n = 0, all = passes(); n < all; ++n) {
      f(n, counter + tile * At::blocks);
      if (++tile == tiles) tile = 0, counter += plan.tiles * At::blocks;
    }
  }
};

// Scales accumulators by `factor`. If operands are split, also scales them by 2^e(), to remove the scaling of
// the operands.
template <class At>
__device__ __forceinline__ void scale_result(auto& sums, float factor, auto&& e) {
  if constexpr (At::split)
    scale(sums, factor, e());
  else
    scale(sums, factor);
}

// Cosines and sines of a warp's 16 rows, starting at row0 of the table, for head size 64. A lane holds both
// elements of each of its pairs. They are loaded early, so that they arrive before the accumulators are
// complete.
template <class At>
struct Factors {
  __device__ __forceinline__ Factors(const NoRopes&, int) {}
};
template <IsRotated At>
struct Factors<At> {
  static constexpr int pairs = 32, apart = pairs / 8;  // fragments between the two elements of a pair
  float2 cosine[2][apart], sine[2][apart];

  __device__ __forceinline__ Factors(const Ropes& ropes, int row0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = min(row0 + 8 * r + lane_row(), ropes.rows - 1);
      const float* const at = ropes.table + row * 2 * pairs + lane_column();
#pragma unroll
      for (int part = 0; part < apart; ++part) {
        cosine[r][part] = *reinterpret_cast<const float2*>(at + 8 * part);
        sine[r][part] = *reinterpret_cast<const float2*>(at + pairs + 8 * part);
      }
    }
  }
  // Rounds rows to S and then applies the inverse rotation, like a separate RoPE kernel.
  template <class S>
  __device__ __forceinline__ void rotate_rows(Accumulator<16, 2 * pairs>& c) const {
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int part = 0; part < apart; ++part) {
        float *const a = &c.x[0][part][2 * r], *const b = &c.x[0][part + apart][2 * r];
        const float2 p = unpack(pack(a[0], a[1], S()), S()), q = unpack(pack(b[0], b[1], S()), S());
        a[0] = p.x, a[1] = p.y, b[0] = q.x, b[1] = q.y;
        rotate_pair(a[0], b[0], cosine[r][part].x, -sine[r][part].x);
        rotate_pair(a[1], b[1], cosine[r][part].y, -sine[r][part].y);
      }
  }
};

// Stores scale·part, the nth part of a tile's z_Q. `row` is the warp's first row in that part.
template <class S, class At>
__device__ __forceinline__ void store_z_q(typename At::ZQ& part, const AttentionCall& x, const Powers* powers,
                                          const Factors<At>& factors, int b, int h, int i0, int nth,
                                          int row) {
  scale_result<At>(part, static_cast<float>(x.scale), [&] {
    const Powers& p = powers[b * x.Hk + h / (x.H / x.Hk)];
    return -p.of_z_a() - p.k;
  });
  using R = Result<S, At>;
  if constexpr (IsRotated<At>) factors.template rotate_rows<R>(part);
  R* const out = x.z_q.at<R>(b, h);
  constexpr int columns = At::wide ? At::D / 4 : At::by_columns ? At::D / 2 : 0;  // columns per part; 0: all
  if constexpr (At::transposes)
    store_transposed(part, out, x.z_q.row, nth * 64 + row, i0, x.L, x.d);
  else
    store(part, out + nth * columns, x.z_q.row, i0 + (columns ? 0 : nth * 64) + row, x.L,
          x.d - nth * columns);
}

// Steps of a consumer warpgroup, without its GEMMs. Rows are keys, 16 per warp. For split operands, P is
// scaled by 2^room_for_p (included in the loaded ξ), and z_A by 2^of_z_a().
template <class S, class At, Options options>
struct Steps : Block<S, At> {
  using R = Result<S, At>;
  static constexpr int queries = At::queries;
  using Scores = Accumulator<16, queries>;
  using T = Terms<S, At::terms>;
  using PackedTile = PackedF16Split<T, queries>;

  using Block<S, At>::shared, Block<S, At>::x, Block<S, At>::work, Block<S, At>::plan;
  int group;

  // The warp's first row of the block's keys. Recomputed at each use to save a register.
  __device__ __forceinline__ static int row() {
    return (static_cast<int>(threadIdx.x) / 32 * 16 - 64) & (At::keys - 1);
  }
  // Scaling exponents of the key head.
  __device__ __forceinline__ const Powers& powers() const {
    const TilePosition at = place();
    return plan.powers[at.b * x.Hk + at.head];
  }
  __device__ __forceinline__ Score<S> score() const {
    return {At::split ? shared.item().factor : plan.factor, plan.cap};
  }

  // Converts q·k to P and rounds it. No registers are left to keep the unrounded P. Masked tiles have a
  // separate code path because most tiles need no mask.
  __device__ __forceinline__ void probabilities(Scores& s, PackedTile& p, const Rows<queries>& rows,
                                                const auto& stats, const Score<S>& score, int j0,
                                                bool masked) const {
    if constexpr (options == any) score.template apply<!At::split>(s);
    const Dropout<float> dropout(x);
    const Score<S> rest(options == any ? 1.f : score.factor, 0.f);
    const ScoreGradient<S, none, false, std::decay_t<decltype(stats)>> stage{x, rest, dropout, stats,
                                                                             0, 0,    0};
    const auto finish = [&](auto with_mask) {
      const auto of_part = [&](int, int column, float(&a)[4]) {
        float slope[4];
        stage.probability({0, column}, a, slope);
      };
      for_each_part(of_part, s);
      if constexpr (with_mask) mask<false>(s, rows.seen, row(), 0, j0, 0);
      pack<S>(p, s);
    };
    masked ? finish(std::true_type()) : finish(std::false_type());
  }
  // Two adjacent elements of a rounded operand.
  __device__ __forceinline__ static float2 pair(const PackedTile& p, int k, int e) {
    float2 sum = unpack(p.term[0].x[k][e], S());
    if constexpr (At::terms == 2) {
      const float2 low = unpack(p.term[1].x[k][e], S());
      sum.x += low.x, sum.y += low.y;
    }
    return sum;
  }
  __device__ __forceinline__ static void put_pair(PackedTile& to, int k, int e, float x, float y) {
    to.term[0].x[k][e] = tile::pack(x, y, S());
    if constexpr (At::terms == 2) {
      const float2 high = unpack(to.term[0].x[k][e], S());
      to.term[1].x[k][e] = tile::pack(x - high.x, y - high.y, S());
    }
  }
  // z_A = P ⊛ (z_P·unit − u)·slope, rounded.
  __device__ __forceinline__ void gradients(const PackedTile& p, Scores& z_p, PackedTile& z_a,
                                            const Rows<queries>& rows, const Score<S>& score) const {
    const float unit = At::split ? shared.item().unit : 1.f,
                inverse = options == any ? tile::reciprocal(score.cap) : 0;
    const StatRows stats = rows.stats();
#pragma unroll
    for (int part = 0; part < z_p.parts; ++part) {
      const Part<false> at{0, 8 * part + lane_column()};
      const float2 u = stats.u(at), lse = options == any ? stats.lse(at) : float2{};
      float(&b)[4] = z_p.x[0][part];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 a = pair(p, part / 2, part % 2 * 2 + half);
        const float slope_x = options == any ? score.slope_of(a.x, lse.x, inverse) : 1,
                    slope_y = options == any ? score.slope_of(a.y, lse.y, inverse) : 1;
        put_pair(z_a, part / 2, part % 2 * 2 + half, score_gradient(a.x, b[2 * half], unit, u.x, slope_x),
                 score_gradient(a.y, b[2 * half + 1], unit, u.y, slope_y));
      }
    }
  }
  // The lane's 16-byte address in z_A's tile for step k. Together, the lanes address all of the warp's keys.
  __device__ __forceinline__ u32 place_of_z_a(u32 n, int k, int term = 0) const {
    const typename At::ZA to = shared.tile_z_a(n);
    const int lane = lane_id();
    return to.base +
           to.offset(16 * k + lane % 8 + lane / 16 * 8, row() / 8 + lane / 8 % 2 + term * (At::keys / 8));
  }
  // Stores z_A to shared memory, [queries, keys]. A loop over `term` would make ptxas spill a register.
  __device__ __forceinline__ void share(PackedTile& z_a, u32 n) const {
    share(z_a.term[0], n, 0);
    if constexpr (At::terms == 2) share(z_a.term[1], n, 1);
  }
  __device__ __forceinline__ void share(Packed<queries>& z_a, u32 n, int term) const {
#pragma unroll
    for (int k = 0; k < queries / 16; ++k) ptx::stmatrix_trans(place_of_z_a(n, k, term), z_a.x[k]);
    ptx::fence_async();
  }
  // Named barrier for warpgroup `group`: z_A of tile n is in shared memory. There are two phases because one
  // warpgroup may be one tile ahead.
  __device__ __forceinline__ static int z_a_for(int group, u32 n) {
    return 1 + 2 * (n % 2) + group;
  }

  // Converts S and z_P of the nth tile to P and z_A, and signals the other warpgroup. When at most `products`
  // GEMMs are in flight, S is complete. These GEMMs compute z_P. While the previous tile's additions to z_Q
  // are in flight, the registers of `to` must not be reused.
  template <int products>
  __device__ __forceinline__ void make_operands(Scores& s, Scores& z_p, PackedTile& p, PackedTile& z_a, u32 n,
                                                const auto& stats, const Score<S>& score, int j0, bool masked,
                                                const float* to) const {
    const auto& rows = shared.rows_of(n);
    wait_for_products<products>();
    keep(s);
    probabilities(s, p, rows, stats, score, j0, masked);
    keep(p);
    ptx::hold(to);
    wait_for_products<0>();
    keep(z_p);
    gradients(p, z_p, z_a, rows, score);
    share(z_a, n);
    ptx::bar_arrive(z_a_for(group ^ 1, n), 256);
  }

  // Hides a tile's address from the compiler. The compiler then computes each descriptor where it is used.
  // Keeping the descriptors of all GEMMs would need too many registers.
  __device__ __forceinline__ static auto again(auto tile) {
    ptx::keep(tile.base);
    return tile;
  }

  // Zeros the queries that belong to no sequence. Their memory may contain anything. Called by both
  // warpgroups.
  __device__ __forceinline__ void clear_others(u32 n, int i0) const {
    const KeyRange valid = queries_of_sequences(x);
    if (covers(valid, i0, queries)) return;
    shared.ring_q().wait(n), shared.ring_z_o().wait(n);
    clear(shared.tile_q(n), i0, valid), clear(shared.tile_z_o(n), i0, valid);
    ptx::fence_async();
    ptx::barrier_sync(5, 256);  // warpgroups may call this from different code
  }
  __device__ __forceinline__ static void clear(auto tile, int i0, KeyRange valid) {
    constexpr int pieces = tile.blocks * 8;
#pragma unroll 1
    for (int k = threadIdx.x - 128; k < queries * pieces; k += 256) {
      const int r = k / pieces;
      if (i0 + r < valid.from || i0 + r >= valid.to)
        ptx::st_shared_v4(tile.base + tile.offset(r, k % pieces), {});
    }
  }

  // Issues S = K·Qᵀ of the nth tile after it has arrived.
  __device__ __forceinline__ void begin_scores(Scores& s, u32 n) const {
    shared.ring_q().wait(n);
    if (x.cu_q) clear_others(n, (shared.item().met.first + n % this->tiles()) * At::queries);
    begin_ABt<S, At::D>(s, again(shared.tile_k()), At::wide ? 0 : 64 * group, shared.tile_q(n));
  }

  // first_sums(): the address of the thread's z_Q accumulators, one tile before the first tile. step(): the
  // offset from one tile's accumulators to the next tile's.
  __device__ __forceinline__ float* first_sums() const {
    const TilePosition at = shared.item().at;
    const i64 tile = (i64{at.b} * x.H + at.head * plan.group) * plan.tiles + shared.item().met.first;
    return work.z_q + (tile - 1) * At::sums + (At::parts > 1 ? group * At::sums_between : 0) +
           threadIdx.x % 128 * 4;
  }
  __device__ __forceinline__ i64 step(u32 n, int tile) const {
    return i64{tile == 0 && n > 0 ? plan.tiles - this->tiles() + 1 : 1} * At::sums;
  }
  // await_ticket(): waits until the block may add to the tile's z_Q. end_ticket(): signals that it has added.
  __device__ __forceinline__ Ticket await_ticket(u32 n) const {
    if (plan.nondeterministic) return {1, false};
    shared.ring_ticket().wait(n);
    return shared.ticket(n);
  }
  __device__ __forceinline__ void end_ticket(u32 n) const {
    if (!plan.nondeterministic) shared.ring_added().announce_by_warp(n);
  }
  // Adds a warpgroup's part of a tile's z_Q. The first block stores it instead.
  template <int Columns>
  __device__ __forceinline__ static void add(const Accumulator<16, Columns>& part, float* to, int ticket) {
    if (ticket == 0) {
#pragma unroll
      for (int k = 0; k < part.parts; ++k) ptx::st_global_v4(to + k * 512, part.x[0][k]);
    } else if (ticket > 0) {
#pragma unroll
      for (int k = 0; k < part.parts; ++k) ptx::red_add_v4(to + k * 512, part.x[0][k]);
    }
  }
  // Adds part `nth` of the nth tile's z_Q. This is tile number `tile` of its head. The last block stores z_Q
  // instead.
  __device__ __forceinline__ void add_or_store(typename At::ZQ& part, float* to, Ticket ticket, u32 n,
                                               int tile, int nth) const {
    if (!At::last_stores || !ticket.last) return add(part, to, ticket.nth);
    const int i0 = (shared.item().met.first + tile) * At::queries;
    const Factors<At> factors(plan.ropes, i0 + nth * 64 + row() % 64);
    if (ticket.nth > 0) {
      const u32 from = shared.sums_so_far() + nth * At::sums_between * 4 + threadIdx.x % 128 * 16;
#pragma unroll
      for (int k = 0; k < part.parts; ++k) {
        const uint4 v = ptx::ld_shared_v4(from + k * 2048);
        part.x[0][k][0] += __uint_as_float(v.x), part.x[0][k][1] += __uint_as_float(v.y);
        part.x[0][k][2] += __uint_as_float(v.z), part.x[0][k][3] += __uint_as_float(v.w);
      }
    }
    const TilePosition at = place();
    const int h = at.head * plan.group + static_cast<int>(n) / this->tiles();
    store_z_q<S, At>(part, x, plan.powers, factors, at.b, h, i0, nth, row() % 64);
  }

  // Stores the results of the warp's keys. The block's position is reloaded from shared memory to save
  // registers.
  __device__ __forceinline__ TilePosition place() const {
    return shared.item().at;
  }
  __device__ __forceinline__ void store_z_k(auto& z_k) const {
    const TilePosition at = place();
    scale_result<At>(z_k, plan.scale, [&] { return -powers().of_z_a() - powers().q; });
    if constexpr (IsRotated<At>) Factors<At>(plan.ropes, at.row0 + row()).template rotate_rows<R>(z_k);
    store(z_k, x.z_k.template at<R>(at.b, at.head), x.z_k.row, at.row0 + row(), x.T, x.d);
  }
  __device__ __forceinline__ void store_z_v(auto& z_v) const {
    const TilePosition at = place();
    scale_result<At>(z_v, 1, [&] { return -Powers::room_for_p - powers().z_o; });
    store(z_v, x.z_v.template at<R>(at.b, at.head), x.z_v.row, at.row0 + row(), x.T, x.dv);
  }
};

}  // namespace tg::cuda::attention::backward_sm90
