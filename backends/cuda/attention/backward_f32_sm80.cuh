// The backward of attention in f32 on tensor cores (004 §D), for one number of terms, without atomics: a pass
// over keys for z_K and z_V and one over queries for z_Q. A block keeps some rows of one side while the tiles
// of the other pass by; both make
//
//   P = exp(A − ξ),  z_A = P ⊛ (D ⊛ z_P − u),  A from q·k, z_P = z_O·Vᵀ
//
// again, in registers, with kept rows and passing columns: the left operand of the next product as it is. All
// are held times powers of two (split_terms.cuh), and the factor of what dropout keeps is left to the
// end.
#pragma once

#include "backends/cuda/attention/split_terms.cuh"

namespace tg::cuda {

using namespace tiles;

namespace {

// What a block makes: z_K, z_V or both of the keys it keeps, or z_Q of the queries it keeps.
enum Pass { for_keys_and_values, for_keys, for_values, for_queries };

// A block of four warps. A warp reads less of shared memory per product the more rows it has and the more
// columns pass at a time; a thread's registers hold, for each group of 16 rows, D / 2 numbers of each sum and
// passing of P and z_A together, three times as many of what is split, and some 80 more.
template <int T, Pass pass, int D, attn::Options options>
struct Gradients {
  static constexpr bool by_query = pass == for_queries;
  static constexpr bool plain = options == attn::none, one_term = T == 1, simple = plain && one_term;
  static constexpr int groups =
      D <= 64 && one_term && (plain || (by_query && options == attn::only_dropout)) ? 2 : 1;
  static constexpr int passing = D > 64 ? 16 : !by_query || !simple ? 32 : 64;
  // Given no number, ptxas spills registers to make room for one block more.
  static constexpr int threads = 128, blocks = simple && D == 64 ? 0 : 2;
  static constexpr int kept = threads / 32 * 16 * groups, queries = by_query ? kept : passing;
  static constexpr int kept_bytes = kept * D * T * 2, tile_bytes = passing * D * T * 2;
  static constexpr int kept_a = 0, kept_b = kept_a + kept_bytes, passing_a = kept_b + kept_bytes,
                       passing_b = passing_a + 2 * tile_bytes, stats = passing_b + 2 * tile_bytes,
                       ranges = stats + (by_query ? 1 : 2) * queries * int(sizeof(float2)),
                       bytes = ranges + int(sizeof(attn::Keys<queries>));
};

// A block for some keys of a key head, which takes the heads of its group one after the other; or for some
// queries of a head. What it keeps and what passes by are a, K or Q, and b, V or z_O.
template <int T, Pass pass, int D, attn::Options options>
__global__ void __launch_bounds__(Gradients<T, pass, D, options>::threads,
                                  Gradients<T, pass, D, options>::blocks)
    gradients(const __grid_constant__ Attention x, const Work work) {
  TG_DYNAMIC_SHARED(memory, 1024);
  using At = Gradients<T, pass, D, options>;
  constexpr bool by_query = At::by_query, makes_v = pass == for_keys_and_values || pass == for_values,
                 makes_a = pass != for_values;
  constexpr int groups = At::groups, threads = At::threads, kept = At::kept, passing = At::passing,
                queries = At::queries;
  auto& ranges = *reinterpret_cast<attn::Keys<queries>*>(memory + At::ranges);
  const u32 base = shared_address(memory);
  const SharedTile<T * D> kept_a{base + At::kept_a}, kept_b{base + At::kept_b};
  const auto passing_a = [&](int n) {
    return SharedTile<T * D>{base + At::passing_a + n % 2 * At::tile_bytes};
  };
  const auto passing_b = [&](int n) {
    return SharedTile<T * D>{base + At::passing_b + n % 2 * At::tile_bytes};
  };
  const auto stats = [&](int n) {  // {ξ, u} of each query
    return reinterpret_cast<float2*>(memory + At::stats) + (by_query ? 0 : n % 2 * queries);
  };
  const int rows = by_query ? x.L : x.T, heads = by_query ? x.H : x.Hk, group = x.H / x.Hk;
  const int blocks = (rows + kept - 1) / kept, nth = blockIdx.x % blocks, head = blockIdx.x / blocks % heads,
            b = blockIdx.x / blocks / heads;
  const int kept0 = (by_query ? blocks - 1 - nth : nth) * kept;  // under a causal mask, longest first
  const int lane = lane_id(), g = lane / 4, t = lane % 4, row = threadIdx.x / 32 * 16 * groups;

  // Rows of both sides that meet, and the tiles they pass in.
  KeyRange kept_rows{0, x.L}, passing_rows, every;
  int first, last;
  const int range_tiles = (x.L + range_tile - 1) / range_tile;
  if constexpr (!by_query) {
    const auto met = attn::tiles_that_meet(work.some + b * range_tiles, range_tiles, kept0, kept0 + kept);
    first = met.first * (range_tile / passing);
    last = min(met.last * (range_tile / passing), (x.L + passing - 1) / passing);
    kept_rows = met.keys, passing_rows = attn::queries_of_sequences(x);
  } else {
    ranges.set(x, b, kept0);
    attn::load_stats<queries>(stats(0), x, work, b, head, kept0);
    __syncthreads();
    ranges.unite(min(queries, x.L - kept0), passing_rows, every);
    first = passing_rows.from / passing, last = (passing_rows.to + passing - 1) / passing;
  }

  const auto load = [&](auto n_rows, SharedTile<T * D> tile_a, SharedTile<T * D> tile_b, bool keys, int h,
                        int row0, KeyRange r) {
    const Attention::Operand &a = keys ? x.k : x.q, &z = keys ? x.v : x.z_o;
    load_rows<n_rows, threads>(tile_a, a.at<__half>(b, h), a.row, row0, r.from, r.to, T * D);
    load_rows<n_rows, threads>(tile_b, z.at<__half>(b, h), z.row, row0, r.from, r.to, T * D);
  };
  const auto fetch = [&](int n, int h, int row0) {
    load(std::integral_constant<int, passing>(), passing_a(n), passing_b(n), by_query,
         by_query ? h / group : h, row0, passing_rows);
    if (!by_query) attn::fetch_stats<queries>(stats(n), x, work, b, h, row0);
    commit();
  };
  load(std::integral_constant<int, kept>(), kept_a, kept_b, !by_query, head, kept0, kept_rows);
  commit();

  Sums<D / 8> sums_a[groups], sums_v[groups];  // z_K or z_Q; z_V
#pragma unroll
  for (int m = 0; m < groups; ++m) sums_a[m].clear(), sums_v[m].clear();
  Dropout<float> dropout(x);
  const float kept_factor = dropout.kept;
  dropout.kept = 1;
  const Powers powers = x.powers[b * x.Hk + (by_query ? head / group : head)];
  const float factor = attn::power_of_two(-powers.q - powers.k),
              p_factor = attn::power_of_two(Powers::room_for_p),
              z_factor = attn::power_of_two(Powers::room_for_z_a + powers.z_a);
  const int all = max(last - first, 0) * (by_query ? 1 : group);
  int next_head = by_query ? head : head * group, next_tile = first;
  if (all > 0) fetch(0, next_head, next_tile * passing);
  for (int n = 0; n < all; ++n) {
    const int h = next_head, passing0 = next_tile * passing;
    if (++next_tile == last) next_tile = first, ++next_head;
    const int i0 = by_query ? kept0 : passing0, j0 = by_query ? passing0 : kept0;
    wait<0>();
    __syncthreads();
    if (n + 1 < all) fetch(n + 1, next_head, next_tile * passing);
    if constexpr (!by_query) {
      const int2 r = work.every[b * range_tiles + i0 / range_tile];
      every = {r.x, r.y};
    }
    const bool masked = j0 < every.from || j0 + (by_query ? passing : kept) > every.to;
    if (!by_query && masked) {
      ranges.set(x, b, i0);
      __syncthreads();
    }

    using Part = attn::Part<by_query>;
    Sums<passing / 8> p[groups], za[groups];
    const auto each_part = [&](auto&& f) {
#pragma unroll
      for (int c = 0; c < passing / 8; ++c)
#pragma unroll
        for (int m = 0; m < groups; ++m) f(Part{row + 16 * m + g, 8 * c + 2 * t}, p[m].x[c], za[m].x[c]);
    };
    each_part([&](Part at, float(&a)[4], float(&z)[4]) {  // z_P − u, but where dropout comes between
#pragma unroll
      for (int e = 0; e < 4; ++e) a[e] = 0, z[e] = options == attn::none ? -stats(n)[at.query(e)].y : 0;
    });
    add_products_of_rows<T>(p, kept_a, row, passing_a(n));
    if constexpr (makes_a) add_products_of_rows<T>(za, kept_b, row, passing_b(n));

    attn::Extras<float> extras(x, b, h);
    extras.factor *= factor;
    each_part([&](Part at, float(&a)[4], float(&z)[4]) {
      u32 words[4];
      if (options == attn::only_dropout || (options == attn::any && x.dropout > 0)) {
        if constexpr (by_query)
          attn::row_words(dropout, b * x.H + h, i0 + at.row, j0 + at.column - 2 * t, words);
        else
          attn::column_words(dropout, b * x.H + h, i0 + at.column, j0 + at.row - g, words);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float2 own = stats(n)[at.query(e)];
        float slope = 1;
        if constexpr (options == attn::any) {
          const int i = i0 + at.query(e), j = j0 + at.key(e);
          a[e] = exp2_fast(extras.score(a[e], i, j, i < x.L && j < x.T, &slope) - own.x);
        } else {
          a[e] = exp2_fast(a[e] * extras.factor - own.x);
        }
        if constexpr (options == attn::none) {
          z[e] *= a[e] * z_factor;
          a[e] *= p_factor;
        } else {
          const float keep = options == attn::only_dropout || x.dropout > 0 ? dropout.factor(words[e]) : 1.f;
          z[e] = a[e] * z_factor * (z[e] * keep - own.y) * slope;
          a[e] *= keep * p_factor;
        }
      }
    });
    if (masked)
      each_part([&](Part at, float(&a)[4], float(&z)[4]) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = at.query(e), j = j0 + at.key(e);
          if (j < ranges.first[i] || j >= ranges.last[i]) a[e] = z[e] = 0;
        }
      });
    if constexpr (makes_v) add_products<T>(sums_v, p, passing_b(n));
    if constexpr (makes_a) add_products<T>(sums_a, za, passing_a(n));
  }
  wait<0>();

  const Attention::Operand& z_a = by_query ? x.z_q : x.z_k;
#pragma unroll
  for (int m = 0; m < groups; ++m) {
    const int row0 = kept0 + row + 16 * m;
    if constexpr (makes_a) {
      const int e =
          Powers::room_for_z_a + powers.z_o + powers.v + powers.z_a + (by_query ? powers.k : powers.q);
      attn::scale(sums_a[m], static_cast<float>(x.scale) * kept_factor, -e);
      store_rows(sums_a[m], z_a.at<float>(b, head), z_a.row, row0, rows, x.d);
    }
    if constexpr (makes_v) {
      attn::scale(sums_v[m], kept_factor, -Powers::room_for_p - powers.z_o);
      store_rows(sums_v[m], x.z_v.at<float>(b, head), x.z_v.row, row0, rows, x.dv);
    }
  }
}

template <int T>
void launch_gradients(const Stream& s, const Attention& x, const Work& work) {
  const auto with_sizes = [&](auto size, auto options) {
    const auto run = [&](auto pass, i64 heads, i64 rows) {
      using At = Gradients<T, pass, size, options>;
      const i64 blocks = x.B * heads * ((rows + At::kept - 1) / At::kept);
      if (blocks > 0)
        launch_kernel(s, {blocks_for(blocks, 1), At::threads, At::bytes}, gradients<T, pass, size, options>,
                      x, work);
    };
    if constexpr (T == 2 && size > 64) {  // both sums at once are more than registers hold
      run(std::integral_constant<Pass, for_keys>(), x.Hk, x.T);
      run(std::integral_constant<Pass, for_values>(), x.Hk, x.T);
    } else {
      run(std::integral_constant<Pass, for_keys_and_values>(), x.Hk, x.T);
    }
    run(std::integral_constant<Pass, for_queries>(), x.H, x.L);
  };
  attn::with_width(
      x, [&](auto size) { attn::with_options(x, [&](auto options) { with_sizes(size, options); }); });
}

}  // namespace

}  // namespace tg::cuda
