// The backward on tensor cores (FlashAttention-2) [Stratos, FlashAttention §D] with P and z_A in shared
// memory, where all warps can read them. A block keeps some keys and loops over tiles of queries:
//
//   P = exp(A − ξ), z_A = P ⊛ (V·z_Oᵀ − u)   [keys, queries],  A from S = K·Qᵀ
//   z_V += (P ⊛ keep)·z_O,  z_K += z_A·Q,  and perhaps  z_Q += z_Aᵀ·K  in global memory
//
// z_Q in global memory is optional. Without it, a second pass computes z_Q: a block keeps some queries and
// loops over tiles of keys, z_Q += z_A·K, with z_A [queries, keys]. Wide heads use this second pass.
//
// In nondeterministic mode, all blocks add to the same z_Q accumulator. In deterministic mode, each key head
// has `workers` blocks. They share the keys and have separate accumulators.
//
// Shared-memory reads limit the speed. A warp's GEMM of r rows by c columns reads 4096/c + 4096/r bytes per
// mma. In the time needed to read 128 bytes, a multiprocessor executes 0.6 mma.
#include "backends/cuda/attention/backward/backward_memory_sm80.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/shapes.h"
#include "backends/cuda/attention/stages/epilogue.cuh"
#include "backends/cuda/tile/mma_sm80.cuh"

namespace tg::cuda::attention {

namespace one_pass {

using namespace tile;

// Processes one work item. An item is either some keys of a key head or some queries of a head. With keys,
// the block processes all query heads of the group.
template <class S, Side side, int D, int DV, Options options>
struct Block {
  using At = TileShape<side, D, DV, options>;
  using T = Terms<S, 1>;
  static constexpr Cut cut = At::c;
  static constexpr bool in_groups = one_pass::in_groups(D, options);
  static constexpr Ahead ahead = D <= 128 || in_groups ? Ahead::step : Ahead::none;
  static constexpr int unrolled = D <= 128 || in_groups ? D / 16 : 2;
  static constexpr bool by_query = At::by_query;
  static constexpr int queries = At::queries;
  static constexpr bool three = At::most_stages == 3 && has_room_for_three;
  static_assert(queries == range_tile && sizeof(VisibleKeys<queries>) == bytes_of_seen_keys(queries));

  // Each warp accumulates a part of z_V, of z_K or of z_Q.
  static constexpr int row_parts = cut.kept / cut.sum_rows, v_parts = by_query ? 0 : DV / cut.v_columns;
  static_assert(row_parts * (v_parts + D / cut.own_columns) == cut.warps);
  static constexpr int columns = cut.v_columns > cut.own_columns ? cut.v_columns : cut.own_columns;
  using Sums = Accumulator<cut.sum_rows, columns>;
  static_assert(At::threads / 32 * cut.sum_rows * columns * 2 <= At::bytes(1));  // staging of results

  const AttentionCall& x;
  const Workspace& work;
  BackwardMemory<S, At> shared;
  int stages;
  int warp;
  WorkItem item;

  __device__ __forceinline__ SharedTile<cut.passing> tile_p(int n) const {
    return {shared.base + At::p + (three && n % 2 ? At::second : 0)};
  }
  __device__ __forceinline__ SharedTile<cut.passing> tile_za(int n) const {
    return {shared.base + At::za + (three && n % 2 ? At::second : 0)};
  }

  __device__ __forceinline__ int stage_after(int stage) const { return stage + 1 < stages ? stage + 1 : 0; }

  // Computes P ⊛ keep and z_A of a tile, fragment by fragment, and stores them to shared memory.
  __device__ __forceinline__ void make_scores(const Dropout<float>& dropout, int n, int stage, int h, int i0,
                                              int j0, bool masked) const {
    constexpr int row_pieces = cut.kept / cut.score_rows,
                  pieces = row_pieces * (cut.passing / cut.score_columns);
    static_assert(pieces % cut.warps == 0);
    const Score<S> score = Score<S>::template of_call<options>(x, item.b, h);
    const ScoreGradient<S, options, by_query> stage_of{
        x, score, dropout, shared.stats(stage), item.b * x.H + h, i0, j0};
#pragma unroll 1
    for (int piece = warp; piece < pieces; piece += cut.warps) {
      const int r0 = piece % row_pieces * cut.score_rows, c0 = piece / row_pieces * cut.score_columns;
      Accumulator<cut.score_rows, cut.score_columns> p, za, slopes;
      p.fill(0);
      mma_ABt<T, ahead, unrolled>(p, shared.kept_a(), r0, shared.passing_a(stage), c0);  // q·k
      stage_of.probabilities(p, slopes, r0, c0);
      if (masked) mask<by_query>(p, shared.seen(), r0, c0, j0, 0);
      attention::begin<options, by_query>(za, shared.stats(stage), r0, c0);
      mma_ABt<T, ahead, unrolled>(za, shared.kept_b(), r0, shared.passing_b(stage), c0);  // z_P
      stage_of.gradients(p, za, slopes, r0, c0);
      if (!by_query) put<S>(p, tile_p(n), r0, c0);
      put<S>(za, tile_za(n), r0, c0);
    }
  }

  // Computes P and z_A and calls add_to_sums(), with two specialized groups of warps. While the second group
  // computes z_A from P and z_P, the first group adds to z_V. z_V does not need z_A. If no other GEMM needs
  // P, it is passed in z_A's buffer.
  __device__ __forceinline__ void add_in_groups(Sums& sums, int row0, int column0, int n, int stage, int h,
                                                int i0, int j0, bool masked) const {
    constexpr int all = At::threads, half = all / 2, row_pieces = cut.kept / cut.score_rows;
    static_assert(row_pieces * (cut.passing / cut.score_columns) == cut.warps / 2);
    static_assert(by_query || row_parts * v_parts == cut.warps / 2);
    enum { p_made = 1, p_made_in_first, z_a_made, z_a_made_in_second };
    const int piece = warp % (cut.warps / 2);
    const int r0 = piece % row_pieces * cut.score_rows, c0 = piece / row_pieces * cut.score_columns;
    const SharedTile<cut.passing> p = by_query ? tile_za(n) : tile_p(n);
    Accumulator<cut.score_rows, cut.score_columns> s;
    if (warp < cut.warps / 2) {
      s.fill(0);
      mma_ABt<T, ahead, unrolled>(s, shared.kept_a(), r0, shared.passing_a(stage), c0);  // q·k
      const Score<S> score = Score<S>::template of_call<options>(x, item.b, h);
      const Dropout<float> no_dropout(x);
      const ScoreGradient<S, options, by_query> stage_of{
          x, score, no_dropout, shared.stats(stage), item.b * x.H + h, i0, j0};
      Accumulator<cut.score_rows, cut.score_columns> slopes;  // 1, never read
      stage_of.probabilities(s, slopes, r0, c0);
      if (masked) mask<by_query>(s, shared.seen(), r0, c0, j0, 0);
      put<S>(s, p, r0, c0);
      ptx::bar_arrive(p_made, all);
      if constexpr (!by_query) {
        ptx::bar_sync(p_made_in_first, half);
        add_to_sums(sums, true, row0, column0, n, stage);
      }
      ptx::bar_sync(z_a_made, all);
    } else {
      attention::begin<options, by_query>(s, shared.stats(stage), r0, c0);
      mma_ABt<T, ahead, unrolled>(s, shared.kept_b(), r0, shared.passing_b(stage), c0);  // z_P − u
      ptx::bar_sync(p_made, all);
      multiply_by<S>(s, p, r0, c0);
      if (by_query) __syncwarp();  // z_A replaces P
      put<S>(s, tile_za(n), r0, c0);
      if constexpr (by_query) {
        ptx::bar_sync(z_a_made, all);
      } else {
        ptx::bar_arrive(z_a_made, all);
        ptx::bar_sync(z_a_made_in_second, half);
        add_to_sums(sums, false, row0, column0, n, stage);
      }
    }
    if constexpr (by_query) add_to_sums(sums, false, row0, column0, n, stage);
  }

  // z_V += (P ⊛ keep)·z_O, z_K += z_A·Q or z_Q += z_A·K, depending on the warp's part.
  __device__ __forceinline__ void add_to_sums(Sums& sums, bool sums_v, int row0, int column0, int n,
                                              int stage) const {
    if constexpr (D == DV) {
      const SharedTile<D> right{sums_v ? shared.passing_b(stage).base : shared.passing_a(stage).base};
      mma_AB<T, cut.passing, columns>(sums, sums_v ? tile_p(n) : tile_za(n), row0, right, column0);
    } else if (sums_v) {
      mma_AB<T, cut.passing, cut.v_columns>(sums, tile_p(n), row0, shared.passing_b(stage), column0);
    } else {
      mma_AB<T, cut.passing, cut.own_columns>(sums, tile_za(n), row0, shared.passing_a(stage), column0);
    }
  }

  // z_Q += z_Aᵀ·K in global memory, fragment by fragment.
  __device__ __forceinline__ void add_query_gradients(int n, int h, int i0) const {
    constexpr int row_pieces = queries / cut.q_rows, pieces = row_pieces * (D / cut.q_columns);
    static_assert(pieces % cut.warps == 0);
    const i64 sums_of = i64(item.worker * int(x.B) + item.b) * x.H + h;
#pragma unroll 1
    for (int piece = warp; work.z_q && piece < pieces; piece += cut.warps) {
      const int r0 = piece % row_pieces * cut.q_rows, c0 = piece / row_pieces * cut.q_columns;
      Accumulator<cut.q_rows, cut.q_columns> zq;
      zq.fill(0);
      mma_AtB<T, cut.kept, cut.q_columns>(zq, tile_za(n), r0, shared.kept_a(), c0);
#pragma unroll
      for (int m = 0; m < zq.groups; ++m) {
        float* const to = work.z_q_part(x, sums_of, (i0 + r0) / 16 + m, c0 / 8) + lane_id() * 4;
#pragma unroll
        for (int p = 0; p < zq.parts; ++p)
          if (p < (x.d - c0) / 8) ptx::red_add_v4(to + p * 128, zq.x[m][p]);
      }
    }
  }

  __device__ __forceinline__ void run(int blocks) {
    const Traversal range = traversal<by_query, cut.kept, cut.passing>(x, work, item.b, item.head, item.kept0,
                                                                       shared.seen(), shared.stats(0));
    const int tiles = max(range.last - range.first, 0), all = tiles * (by_query ? 1 : x.H / x.Hk);
    // Blocks that add to the same z_Q start at different rows to avoid contention.
    const int start = range.first + (work.z_q ? static_cast<int>(i64(item.nth) * tiles / blocks) : 0);
    const auto after = [&](Cursor at) { return at.after(range.first, range.last, start); };
    shared.load_kept(x, item.b, item.head, range.kept, item.kept0);
    const auto fetch = [&](int stage, Cursor at) {
      shared.load_passing(x, work, item.b, by_query ? item.head / (x.H / x.Hk) : at.h, range.passing,
                          at.tile * cut.passing, stage);
    };
    const int row0 = warp % row_parts * cut.sum_rows;
    const bool sums_v = warp / row_parts < v_parts;
    const int column0 =
        sums_v ? warp / row_parts * cut.v_columns : (warp / row_parts - v_parts) * cut.own_columns;
    Sums sums;
    sums.fill(0);
    const Dropout<float> dropout(x);
    Cursor at{start, by_query ? item.head : item.head * (x.H / x.Hk)};
    if (all > 0) fetch(0, at);
    if constexpr (three) {
      if (all > 1) fetch(1, after(at));
      wait();
      __syncthreads();
    }
    int stage = 0;
    for (int n = 0; n < all; ++n, at = after(at), stage = stage_after(stage)) {
      if constexpr (!three) {
        wait();
        __syncthreads();
      }
      const int passing0 = at.tile * cut.passing;
      const int i0 = by_query ? item.kept0 : passing0, j0 = by_query ? passing0 : item.kept0;
      if (stages == 2 && n + 1 < all) fetch(stage_after(stage), after(at));
      const bool masked = needs_mask<by_query, At::keys>(shared.seen(), x, work, item.b, i0, j0, range.every);
      if constexpr (in_groups) {
        add_in_groups(sums, row0, column0, n, stage, at.h, i0, j0, masked);
      } else {
        make_scores(dropout, n, stage, at.h, i0, j0, masked);
        if constexpr (three) wait();
        __syncthreads();
        if (three && n + 2 < all) fetch(stage_after(stage_after(stage)), after(after(at)));
        add_to_sums(sums, sums_v, row0, column0, n, stage);
      }
      if constexpr (!by_query) add_query_gradients(n, at.h, passing0);
      if (stages == 1 && n + 1 < all) {
        __syncthreads();
        fetch(0, after(at));
      }
    }
    wait();
    __syncthreads();

    const SharedTile<columns> own{shared.base + warp * (cut.sum_rows * columns * 2)};
    const AttentionCall::TensorView& out = sums_v ? x.z_v : by_query ? x.z_q : x.z_k;
    const int width = sums_v ? min(x.dv - column0, cut.v_columns) : min(x.d - column0, cut.own_columns);
    if (!sums_v) tile::scale(sums, static_cast<float>(x.scale));
    store(sums, own, 0, out.at<S>(item.b, item.head) + column0, out.row, item.kept0 + row0,
          by_query ? x.L : x.T, width);
  }
};

template <class S, Side side, int D, int DV, Options options>
__global__ void __launch_bounds__(TileShape<side, D, DV, options>::threads)
    gradients(const __grid_constant__ AttentionCall x, const Workspace work, int stages, int blocks,
              int workers) {
  TG_DYNAMIC_SHARED(memory, 1024);
  using At = TileShape<side, D, DV, options>;
  using Work = Block<S, side, D, DV, options>;
  auto& item = *reinterpret_cast<WorkItem*>(memory + At::item);
  // Items run longest first. Every other round assigns its items to the workers in reverse order. With a
  // causal mask, all workers then have equal work.
#pragma unroll 1
  for (int from = 0; from < blocks; from += workers) {
    if (threadIdx.x == 0) {
      const int heads = At::by_query ? x.H : x.Hk, own = blockIdx.x % workers, bh = blockIdx.x / workers,
                nth = from + (from / workers % 2 ? workers - 1 - own : own);
      item = {bh / heads, bh % heads, (At::by_query ? blocks - 1 - nth : nth) * At::kept, nth,
              work.workers > 1 ? own : 0};
    }
    __syncthreads();
    if (item.nth < blocks) {
      const int warp = __reduce_min_sync(~0u, threadIdx.x / 32);  // warp-uniform for the compiler
      Work{x, work, {memory}, Work::three ? 3 : min(stages, 2), warp, item}.run(blocks);
    }
    __syncthreads();
  }
}

template <Side side, int D, int DV, Options options>
void launch(const Stream& s, const AttentionCall& x, const Workspace& work) {
  using At = TileShape<side, D, DV, options>;
  const int stages = fitting_stages<At>(s.gpu);
  const int rows = At::by_query ? x.L : x.T, blocks = (rows + At::kept - 1) / At::kept,
            workers = At::by_query || !work.z_q || x.nondeterministic ? blocks : work.workers;
  const i64 grid = i64(x.B) * (At::by_query ? x.H : x.Hk) * workers;
  if (grid == 0) return;
  with_16_bits(x.type, [&](auto zero) {
    launch_kernel(s, {blocks_for(grid, 1), At::threads, At::bytes(stages)},
                  gradients<decltype(zero), side, D, DV, options>, x, work, stages, blocks, workers);
  });
}

// z_Q = Σ sums·scale over the workers. Each warp computes 16 rows.
template <class S>
__global__ void __launch_bounds__(range_tile * 2)
    round_query_gradients(const __grid_constant__ AttentionCall x, const Workspace work) {
  const int tiles = work.tiles(x), tile = blockIdx.x % tiles, bh = blockIdx.x / tiles;
  const int lane = lane_id(), rows = tile * (range_tile / 16) + threadIdx.x / 32, i = rows * 16 + lane / 4;
  const float scale = static_cast<float>(x.scale);
  S* out = x.z_q.at<S>(bh / x.H, bh % x.H) + lane % 4 * 2;
  for (int part = 0; part < x.d / 8; ++part) {
    float4 c{0, 0, 0, 0};
    for (int w = 0; w < work.workers; ++w) {
      const float* sums = work.z_q_part(x, i64(w) * x.B * x.H + bh, rows, part);
      const float4 own = reinterpret_cast<const float4*>(sums)[lane];
      c = {c.x + own.x, c.y + own.y, c.z + own.z, c.w + own.w};
    }
    u32 *first = reinterpret_cast<u32*>(out + i * x.z_q.row + part * 8),
        *second = reinterpret_cast<u32*>(out + (i + 8) * x.z_q.row + part * 8);
    if (i < x.L) *first = pack(c.x * scale, c.y * scale, S());
    if (i + 8 < x.L) *second = pack(c.z * scale, c.w * scale, S());
  }
}

}  // namespace one_pass

void launch_one_pass(const Stream& s, const AttentionCall& x, const Workspace& work, const Powers*) {
  using namespace one_pass;
  one_pass::with_shape(x, [&](auto d, auto dv, auto options) {
    launch<by_key, d, dv, options>(s, x, work);
    if constexpr (d > 128)
      if (!work.z_q) launch<by_query, d, dv, options>(s, x, work);
  });
  const i64 tiles = i64(x.B) * x.H * work.tiles(x);
  if (!work.z_q || tiles == 0) return;
  with_16_bits(x.type, [&](auto zero) {
    launch_kernel(s, {blocks_for(tiles, 1), range_tile * 2}, round_query_gradients<decltype(zero)>, x, work);
  });
}

}  // namespace tg::cuda::attention
