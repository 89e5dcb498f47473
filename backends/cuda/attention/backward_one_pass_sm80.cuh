// The backward of attention on tensor cores (004 §D) with P and z_A passed on through shared memory, where
// each warp finds the rows and columns that it multiplies. A block keeps some keys while queries pass by,
//
//   P = exp(A − ξ), z_A = P ⊛ (V·z_Oᵀ − u)   [keys, queries],  A from S = K·Qᵀ
//   z_V += (P ⊛ D)·z_O,  z_K += z_A·Q,  and perhaps  z_Q += z_Aᵀ·K  in global memory,
//
// or some queries while keys pass by, for z_Q alone:  z_Q += z_A·K, z_A [queries, keys].
//
// In free order all blocks add to the same sums of z_Q. In order each key head has `walkers` blocks, which
// share its pieces of keys and have sums of their own.
//
// How often shared memory is read decides the speed: a product of r rows by c columns of a warp reads 4096/c
// + 4096/r bytes for each of its mma, of which a multiprocessor can do 0.6 in the time of 128 bytes.
#pragma once

#include "backends/cuda/attention/score.cuh"
#include "backends/cuda/kernels/launch.cuh"

namespace tg::cuda::attn {

using namespace tiles;

enum Side { by_key, by_query };  // what a block keeps

// How a block's work is cut for its warps: tiles of `kept` and `passing` rows; P and z_A in pieces of
// score_rows × score_columns; sums over what passes in parts of sum_rows × v_columns (z_V) or own_columns
// (z_K or z_Q); a passing tile's z_Q in pieces of q_rows × q_columns.
struct Cut {
  int warps, kept, passing, score_rows, score_columns, sum_rows, v_columns, own_columns, q_rows, q_columns;
};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool has_wide_sums = false;  // red_add_v4 is four instructions, and takes registers
#else
constexpr bool has_wide_sums = true;
#endif
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ < 900 || __CUDA_ARCH__ >= 1200)
constexpr bool has_room_for_three = false;
#else
constexpr bool has_room_for_three = true;  // 227 KiB of shared memory
#endif
// d ≤ D and dv ≤ DV. Of each, as many registers as there are: (sum_rows·columns + 2·score_rows·score_columns)
// / 32 and some 60 for the rest.
template <Side side, int D, int DV, Options options>
constexpr Cut cut() {
  constexpr bool plain = options == none;
  if (side == by_query)
    return D <= 192   ? Cut{8, 64, 64, 32, 16, 32, 0, D / 4, 0, 0}
           : D <= 256 ? Cut{8, 64, 64, 32, 16, 32, 0, 64, 0, 0}
                      : Cut{8, 64, 32, 16, 16, 32, 0, D / 4, 0, 0};
  if (D <= 64) return {4, 128, 64, 32, plain && has_wide_sums ? 32 : 16, 64, 64, 64, 32, 32};
  if (D <= 96) return {8, 128, 64, 32, plain ? 32 : 16, 64, 48, 48, 16, 48};
  if (D <= 128) return {8, 128, 64, 32, plain ? 32 : 16, 64, 64, 64, 32, 32};
  if (D <= 192) return {8, 64, 64, 32, 16, 32, DV / 2, D / 2, 32, 48};
  if (D <= 256) return {8, 64, 64, 32, 16, 64, 64, 64, 32, 32};
  return {8, 32, 64, 16, 16, 32, DV / 4, D / 4, has_wide_sums ? 32 : 16, 48};
}

// Where a block works: the batch entry and the head (by key that of the keys), its first row, the nth piece
// of all, and the walker whose sums of z_Q it adds to; of the passing tiles, how many there are, the first
// and the one to begin with.
struct Place {
  int b, head, kept0, nth, walker;
  int tiles, first, turn;
};

// A block's shared memory. Tiles that pass by have one to three stages, as there is room. With three, P and
// z_A have two buffers, and the warps of a block wait for each other once a tile instead of twice: some add
// to their sums while others are at the next tile's scores.
template <Side side, int D, int DV, Options options>
struct Shared {
  static constexpr Cut c = cut<side, D, DV, options>();
  static constexpr int queries = side == by_key ? c.passing : c.kept;
  static constexpr int kept_a = 0, kept_b = kept_a + c.kept * D * 2, p = kept_b + c.kept * DV * 2,
                       za = p + (side == by_key ? c.kept * c.passing * 2 : 0),
                       ranges = za + c.kept * c.passing * 2, stats = ranges + int(sizeof(Keys<queries>)),
                       place = stats + 3 * queries * int(sizeof(float2)),
                       stages = (place + int(sizeof(Place)) + 1023) / 1024 * 1024,
                       passing_b = c.passing * D * 2, stage = passing_b + c.passing * DV * 2;
  static constexpr bool takes_three = side == by_key && D > 64 && D <= 128;
  static constexpr int second = stages + 3 * stage - p;  // from the first buffers of P and z_A to the second
  static constexpr std::size_t bytes(int n) { return stages + n * stage + (n == 3 ? ranges - p : 0); }
  static int fitting_stages(int most_bytes) {
    for (int n = takes_three ? 3 : 2; n > 0; --n)
      if (int(bytes(n)) <= most_bytes) return n;
    return 0;
  }
};

// What a block does at one place: for some keys of a key head, whose group's heads it takes one after the
// other, or for some queries of a head.
template <class S, Side side, int D, int DV, Options options>
__device__ __forceinline__ void add_gradients(const Attention& x, const Work& work, int stages, int blocks,
                                              unsigned char* memory) {
  using At = Shared<side, D, DV, options>;
  constexpr bool three = At::takes_three && has_room_for_three;
  stages = three ? 3 : min(stages, 2);
  constexpr Cut cut = At::c;
  constexpr int threads = cut.warps * 32, queries = At::queries;
  static_assert(queries == range_tile);
  auto& ranges = *reinterpret_cast<Keys<queries>*>(memory + At::ranges);
  const u32 base = shared_address(memory);
  const SharedTile<D> kept_a{base + At::kept_a};   // K or Q
  const SharedTile<DV> kept_b{base + At::kept_b};  // V or z_O
  const auto passing_a = [&](int stage) { return SharedTile<D>{base + At::stages + stage * At::stage}; };
  const auto passing_b = [&](int stage) {
    return SharedTile<DV>{base + At::stages + At::passing_b + stage * At::stage};
  };
  const auto stats = [&](int stage) {  // {ξ, u} of each query
    return reinterpret_cast<float2*>(memory + At::stats) + (side == by_key ? stage * queries : 0);
  };
  const auto stage_after = [&](int stage) { return stage + 1 < stages ? stage + 1 : 0; };
  const int lane = lane_id(), g = lane / 4, t = lane % 4;
  const int warp = __reduce_min_sync(~0u, threadIdx.x / 32);  // the compiler sees that lanes agree

  // Where 64-column sums leave no registers for it, in shared memory.
  std::conditional_t<(D > 64), Place, Place&> place = *reinterpret_cast<Place*>(memory + At::place);
  const int group = side == by_key ? x.H / x.Hk : 1;

  // Tiles that meet the kept rows: from the first to the last, and which rows of each side do.
  const int range_tiles = (x.L + range_tile - 1) / range_tile;
  int first, last;
  KeyRange kept{0, x.L}, passing, every;
  if constexpr (side == by_key) {
    const int b = place.b, kept0 = place.kept0;
    const auto met = tiles_that_meet(work.some + b * range_tiles, range_tiles, kept0, kept0 + cut.kept);
    first = met.first, last = met.last, kept = met.keys;
    passing = queries_of_sequences(x);
  } else {
    const int b = place.b, kept0 = place.kept0;
    ranges.set(x, b, kept0);
    load_stats<queries>(stats(0), x, work, b, place.head, kept0);
    __syncthreads();
    ranges.unite(min(queries, x.L - kept0), passing, every);
    first = passing.from / cut.passing, last = (passing.to + cut.passing - 1) / cut.passing;
  }
  const int all = max(last - first, 0) * group;
  if (D > 64 || threadIdx.x == 0) {
    place.first = first, place.tiles = max(last - first, 0);
    // Blocks that add to the same z_Q begin at different rows of it, or all would add to the same at once.
    place.turn = work.z_q ? static_cast<int>(i64(place.nth) * place.tiles / blocks) : 0;
  }
  __syncthreads();
  const auto key_head_of = [&] { return side == by_key ? place.head : place.head / (x.H / x.Hk); };
  struct Cursor {  // the tiles of a head, then those of the next
    int tile, h;
  };
  const auto after = [&](Cursor at) {
    const int tile = at.tile + 1 < place.tiles ? at.tile + 1 : 0;
    return Cursor{tile, at.h + (tile == place.turn)};
  };

  const auto load = [&](auto tile_a, auto tile_b, auto rows_of_tile, bool keys, int h, int row0, KeyRange r) {
    const int b = place.b;
    const Attention::Operand &a = keys ? x.k : x.q, &z = keys ? x.v : x.z_o;
    load_rows<rows_of_tile, threads>(tile_a, a.at<S>(b, h), a.row, row0, r.from, r.to, x.d);
    load_rows<rows_of_tile, threads>(tile_b, z.at<S>(b, h), z.row, row0, r.from, r.to, x.dv);
  };
  const auto fetch = [&](int stage, Cursor at) {
    const int row0 = (place.first + at.tile) * cut.passing;
    load(passing_a(stage), passing_b(stage), std::integral_constant<int, cut.passing>(), side == by_query,
         side == by_key ? at.h : key_head_of(), row0, passing);
    if (side == by_key) fetch_stats<queries>(stats(stage), x, work, place.b, at.h, row0);
    commit();
  };
  load(kept_a, kept_b, std::integral_constant<int, cut.kept>(), side == by_key, place.head, place.kept0,
       kept);
  commit();  // for blocks that no tile meets

  // This warp's part of the sums: of z_V by P and z_O, or of z_K or z_Q by z_A and what passes.
  constexpr int row_parts = cut.kept / cut.sum_rows, v_parts = side == by_key ? DV / cut.v_columns : 0;
  static_assert(row_parts * (v_parts + D / cut.own_columns) == cut.warps);
  constexpr int columns = cut.v_columns > cut.own_columns ? cut.v_columns : cut.own_columns;
  const int sum_row0 = warp % row_parts * cut.sum_rows;
  const bool sums_v = warp / row_parts < v_parts;
  const int column0 =
      sums_v ? warp / row_parts * cut.v_columns : (warp / row_parts - v_parts) * cut.own_columns;
  Sums<columns / 8> sums[cut.sum_rows / 16];
#pragma unroll
  for (auto& s : sums) s.clear();

  const Dropout<float> dropout(x);
  Cursor at{place.turn, place.head * group};
  if (all > 0) fetch(0, at);
  if constexpr (three) {
    if (all > 1) fetch(1, after(at));
    wait<0>();
    __syncthreads();
  }
  int stage = 0;
  for (int n = 0; n < all; ++n, at = after(at), stage = stage_after(stage)) {
    if constexpr (!three) {
      wait<0>();
      __syncthreads();
    }
    const int b = place.b, h = at.h, bh = b * x.H + h, passing0 = (place.first + at.tile) * cut.passing;
    const int i0 = side == by_key ? passing0 : place.kept0, j0 = side == by_key ? place.kept0 : passing0;
    if (stages == 2 && n + 1 < all) fetch(stage_after(stage), after(at));
    if constexpr (side == by_key) {
      const int2 r = work.every[b * range_tiles + i0 / range_tile];
      every = {r.x, r.y};
    }
    const bool masked = j0 < every.from || j0 + (side == by_key ? cut.kept : cut.passing) > every.to;
    if (side == by_key && masked) {
      ranges.set(x, b, i0);
      __syncthreads();
    }

    const int buffer = three && n % 2 ? At::second : 0;
    const SharedTile<cut.passing> tile_p{base + At::p + buffer}, tile_za{base + At::za + buffer};
    const Extras<S> extras(x, b, h);
    constexpr int row_pieces = cut.kept / cut.score_rows,
                  pieces = row_pieces * (cut.passing / cut.score_columns);
    static_assert(pieces % cut.warps == 0);
#pragma unroll 1
    for (int piece = warp; piece < pieces; piece += cut.warps) {
      const int r0 = piece % row_pieces * cut.score_rows, c0 = piece / row_pieces * cut.score_columns;
      constexpr int groups = cut.score_rows / 16, parts = cut.score_columns / 8;
      Sums<parts> p[groups], za[groups], slopes[groups];
      const auto each_part = [&](auto&& f) {
#pragma unroll
        for (int c = 0; c < parts; ++c)
#pragma unroll
          for (int m = 0; m < groups; ++m)
            f(Part<side == by_query>{r0 + 16 * m + g, c0 + 8 * c + 2 * t}, p[m].x[c], za[m].x[c],
              slopes[m].x[c]);
      };

      // P = exp(A − ξ)
#pragma unroll
      for (auto& s : p) s.clear();
      multiply_rows<S>(p, kept_a, r0, passing_a(stage), c0);
      each_part([&](auto at, float(&a)[4], float(&)[4], float(&slope)[4]) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float lse = stats(stage)[at.query(e)].x;
          if constexpr (options == none) {
            a[e] = exp2_fast(a[e] * extras.factor - lse);
          } else {
            const int i = i0 + at.query(e), j = j0 + at.key(e);
            a[e] = exp2_fast(extras.score(a[e], i, j, i < x.L && j < x.T, &slope[e]) - lse);
          }
        }
      });
      if (masked)
        each_part([&](auto at, float(&a)[4], float(&)[4], float(&)[4]) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int i = at.query(e), j = j0 + at.key(e);
            a[e] = j >= ranges.first[i] && j < ranges.last[i] ? a[e] : 0.f;
          }
        });

      // z_A = P ⊛ (z_P ⊛ D − u)
      each_part([&](auto at, float(&)[4], float(&z)[4], float(&)[4]) {
#pragma unroll
        for (int e = 0; e < 4; ++e) z[e] = options == none ? -stats(stage)[at.query(e)].y : 0.f;
      });
      multiply_rows<S>(za, kept_b, r0, passing_b(stage), c0);
      each_part([&](auto at, float(&a)[4], float(&z)[4], float(&slope)[4]) {
        u32 words[4];
        if (options != none && x.dropout > 0) {
          if constexpr (side == by_key)
            column_words(dropout, bh, i0 + at.column, j0 + at.row - g, words);
          else
            row_words(dropout, bh, i0 + at.row, j0 + at.column - 2 * t, words);
        }
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if constexpr (options == none) {
            z[e] *= a[e];
          } else {
            const float keep = x.dropout > 0 ? dropout.factor(words[e]) : 1.f;
            z[e] = a[e] * (z[e] * keep - stats(stage)[at.query(e)].y) * slope[e];
            a[e] *= keep;
          }
      });
#pragma unroll
      for (int m = 0; m < groups; ++m) {
        if (side == by_key) put_rows<S>(p[m], tile_p, r0 + 16 * m, c0);
        put_rows<S>(za[m], tile_za, r0 + 16 * m, c0);
      }
    }

    if constexpr (three) wait<0>();
    __syncthreads();
    if (three && n + 2 < all) fetch(stage_after(stage_after(stage)), after(after(at)));

    if constexpr (side == by_query || D == DV) {
      const SharedTile<D> columns_of{sums_v ? passing_b(stage).base : passing_a(stage).base};
      multiply_columns<S, cut.passing, columns, false>(sums, sums_v ? tile_p : tile_za, sum_row0, columns_of,
                                                       column0);
    } else if (sums_v) {
      multiply_columns<S, cut.passing, cut.v_columns, false>(sums, tile_p, sum_row0, passing_b(stage),
                                                             column0);
    } else {
      multiply_columns<S, cut.passing, cut.own_columns, false>(sums, tile_za, sum_row0, passing_a(stage),
                                                               column0);
    }
    if constexpr (side == by_key) {
      constexpr int q_pieces = queries / cut.q_rows * (D / cut.q_columns);
      static_assert(q_pieces % cut.warps == 0);
      const i64 sums_of = i64(place.walker * x.B + place.b) * x.H + h;
#pragma unroll 1
      for (int piece = warp; work.z_q && piece < q_pieces; piece += cut.warps) {
        const int r0 = piece % (queries / cut.q_rows) * cut.q_rows,
                  c0 = piece / (queries / cut.q_rows) * cut.q_columns;
        Sums<cut.q_columns / 8> zq[cut.q_rows / 16];
#pragma unroll
        for (auto& s : zq) s.clear();
        multiply_columns<S, cut.kept, cut.q_columns, true>(zq, tile_za, r0, kept_a, c0);
#pragma unroll
        for (int m = 0; m < cut.q_rows / 16; ++m)
          add_parts(zq[m], work.z_q_part(x, sums_of, (passing0 + r0) / 16 + m, c0 / 8), (x.d - c0) / 8);
      }
    }
    if (stages == 1 && n + 1 < all) {
      __syncthreads();
      fetch(0, after(at));
    }
  }
  wait<0>();
  __syncthreads();

  const SharedTile<columns> own{base + warp * (16 * columns * 2)};
  const Attention::Operand& out = sums_v ? x.z_v : side == by_key ? x.z_k : x.z_q;
  const int width = sums_v ? min(x.dv - column0, cut.v_columns) : min(x.d - column0, cut.own_columns);
#pragma unroll
  for (int m = 0; m < cut.sum_rows / 16; ++m) {
    if (!sums_v)
#pragma unroll
      for (auto& part : sums[m].x)
#pragma unroll
        for (float& e : part) e *= static_cast<float>(x.scale);
    store_rows<S>(sums[m], own, 0, out.at<S>(place.b, place.head) + column0, out.row,
                  place.kept0 + sum_row0 + 16 * m, side == by_key ? x.T : x.L, width);
  }
}

template <class S, Side side, int D, int DV, Options options>
__global__ void __launch_bounds__(cut<side, D, DV, options>().warps * 32)
    gradients(const __grid_constant__ Attention x, const Work work, int stages, int blocks, int walkers) {
  TG_DYNAMIC_SHARED(memory, 1024);
  using At = Shared<side, D, DV, options>;
  Place& place = *reinterpret_cast<Place*>(memory + At::place);
  // The longest pieces first; to and fro, so that with a causal mask all walkers have as much to do.
#pragma unroll 1
  for (int from = 0; from < blocks; from += walkers) {
    if (threadIdx.x == 0) {
      const int heads = side == by_key ? x.Hk : x.H, own = blockIdx.x % walkers, bh = blockIdx.x / walkers,
                nth = from + (from / walkers % 2 ? walkers - 1 - own : own);
      place = {bh / heads, bh % heads, (side == by_key ? nth : blocks - 1 - nth) * At::c.kept, nth,
               work.walkers > 1 ? own : 0};
    }
    __syncthreads();
    if (place.nth < blocks) add_gradients<S, side, D, DV, options>(x, work, stages, blocks, memory);
    __syncthreads();
  }
}

template <Side side, int D, int DV, Options options>
void launch_gradients(const Stream& s, const Attention& x, const Work& work) {
  using At = Shared<side, D, DV, options>;
  const int stages = At::fitting_stages(s.gpu.shared_per_block);
  const int rows = side == by_key ? x.T : x.L, blocks = (rows + At::c.kept - 1) / At::c.kept,
            walkers = side == by_query || !work.z_q || x.free_order ? blocks : work.walkers;
  const i64 grid = i64(x.B) * (side == by_key ? x.Hk : x.H) * walkers;
  if (grid == 0) return;
  const LaunchShape shape{blocks_for(grid, 1), At::c.warps * 32, At::bytes(stages)};
  x.type == DType::bf16
      ? launch_kernel(s, shape, gradients<__nv_bfloat16, side, D, DV, options>, x, work, stages, blocks,
                      walkers)
      : launch_kernel(s, shape, gradients<__half, side, D, DV, options>, x, work, stages, blocks, walkers);
}

}  // namespace tg::cuda::attn
