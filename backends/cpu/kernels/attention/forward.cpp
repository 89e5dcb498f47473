// FlashForward2 [Stratos, FlashAttention §D] by query tiles. For each tile, the kernel makes one pass over
// the keys that the tile attends to. It updates the running maximum c, the running sum π and G = Σ exp(A −
// c)·V. At the end it writes O = G ⊘ π and ξ = c + log π.
#include <cstdio>

#include "backends/cpu/kernels/attention/attention.h"
#include "backends/cpu/kernels/attention/score_tile.h"

namespace tg::cpu::TG_ISA {
namespace {

constexpr i64 query_block = 64;  // Γ: maximum number of columns
constexpr i64 key_block = 128;   // Λ

// The division of queries into tiles. If sequences are short, a tile contains `heads` complete heads that
// share a key head.
struct Grid {
  explicit Grid(const AttentionCall& x) {
    const i64 group = x.H / x.Hk;
    heads = x.L >= query_block ? 1 : at_most(group, query_block / x.L);
    groups = (group + heads - 1) / heads;
    tiles = (x.L + query_block - 1) / query_block;
    columns = at_most(query_block, round_up(at_most(x.L, query_block) * heads, 16));
  }
  i64 heads, groups, tiles, columns;
};

template <class C>
struct Workspace {
  Workspace(Carver& carver, const AttentionCall& x, const Grid& grid) {
    const i64 n = grid.columns, keys = at_most(key_block, x.T);
    padded = round_up(x.dv, Tile<C>::width);
    tile.carve(carver, n);
    q = carver.take<C>(x.d * n);
    a = carver.take<C>(keys * n);
    g = carver.take<C>(n * padded);
    top = carver.take<C>(n), sum = carver.take<C>(n), shrink = carver.take<C>(n);
    options.carve(carver, x, keys, n, 0);
    const bool tiles = is_on_tiles<C>(x, query_block);
    work = tiles ? carver.take<float>(tile_product_floats(at_least(keys, n), at_least(x.d, x.dv))) : nullptr;
    k = !tiles && needs_copy<C>(x, x.k, x.d, true) ? carver.take<C>(keys * x.d) : nullptr;
    v = !tiles && needs_copy<C>(x, x.v, x.dv, false) ? carver.take<C>(keys * padded) : nullptr;
  }
  QueryTile<C> tile;
  i64 padded;             // row length of G
  C* q;                   // [d × width]
  C* a;                   // [keys × width]: scores, then exp(A − c)
  C* g;                   // [count × padded]
  C *top, *sum, *shrink;  // c, π, exp(c − c_new): [width]
  OptionTiles<C> options;
  C *k, *v;     // copies, or null
  float* work;  // scratch for GEMMs on tiles; null: GEMMs run on vectors
};

// O = G ⊘ π, ξ = c + log π.
template <class C>
void finish_columns(const AttentionCall& x, const Workspace<C>& s, bool any_key) {
  using V = vector_t<C>;
  constexpr int W = Tile<C>::width;
  const QueryTile<C>& t = s.tile;
  const ScoreUnit<C> unit(x);
  with_storage<C>(x.type, [&]<class S>(const S*) {
    for (i64 c = 0; c < t.count; ++c) {
      const i64 h = t.batch_head[c] - t.b * x.H;
      const C sum = s.sum[c];
      store_lse(x, i64{t.batch_head[c]} * x.L + t.query[c], SplitLse<C>(s.top[c], sum, unit));
      const V factor = splat<V>(sum == 0 ? C{0} : 1 / sum);
      S* o = static_cast<S*>(x.o.data) + element_offset<C>(x.o, t.b, h, t.query[c]);
      const C* g = s.g + c * s.padded;
      for (i64 e = 0; e < x.dv; e += W) {
        const V value = any_key ? load(g + e) * factor : V{};
        if (x.dv - e >= W) {
          store(o + e, value);
        } else {
          store_partial(o + e, value, static_cast<int>(x.dv - e));
        }
      }
    }
  });
}

template <class C>
void query_tile(const AttentionCall& x, Workspace<C>& s) {
  using V = vector_t<C>;
  constexpr int W = Tile<C>::width;
  const QueryTile<C>& t = s.tile;
  const ScoreUnit<C> unit(x);
  const i64 key_head = t.h0 / (x.H / x.Hk);
  if (!s.work) load_transposed(x, x.q, t, x.d, unit.of_q, s.q);
  start_columns(x, t, s.top, s.sum);
  bool first = true;
  for (i64 key0 = t.from; key0 < t.to; key0 += key_block) {
    const i64 keys = at_most(key_block, t.to - key0);
    const Rows<C> k = s.work ? Rows<C>{} : load_rows(x, x.k, t.b, key_head, key0, keys, x.d, s.k, x.d);
    scores(x, t, key0, keys, k, s.q, s.a, s.options, s.work);
    const bool grew = softmax_step(keys, t.width, unit.exponent, s.a, s.top, s.sum, s.shrink);
    if (x.dropout > 0) {
      dropout_factors(x, t, key0, keys, s.options.keep);
      for (i64 e = 0; e < keys * t.width; e += W) store(s.a + e, load(s.a + e) * load(s.options.keep + e));
    }
    if (grew && !first) {
      for (i64 c = 0; c < t.count; ++c) {
        const V factor = splat<V>(s.shrink[c]);
        for (i64 e = 0; e < s.padded; e += W)
          store(s.g + c * s.padded + e, load(s.g + c * s.padded + e) * factor);
      }
    }
    const Rows<C> v = s.work ? Rows<C>{} : load_rows(x, x.v, t.b, key_head, key0, keys, x.dv, s.v, s.padded);
    add_product<C>(s.work, t.count, x.dv, keys, {s.a, 1, t.width}, rows_at(x.v, t.b, key_head, key0), v, s.g,
                   s.padded, !first);
    first = false;
  }
  finish_columns(x, s, !first);
}

template <class C>
void run(const AttentionCall& x, Worker& w) {
  const Grid grid(x);
  Carver carver{w.scratch};
  Workspace<C> s(carver, x, grid);
  s.options.expression.worker = &w;
  const TilesInUse<TileUnit> tiles(s.work);
  const i64 group = x.H / x.Hk;
  // With a causal mask, the last tiles of a head have the most keys. They are processed first, which balances
  // the threads.
  w.each(key_heads(x) * grid.groups * grid.tiles, [&](i64 part) {
    const i64 tile = grid.tiles - 1 - part % grid.tiles;
    const i64 head_group = part / grid.tiles % grid.groups,
              key_head = part / (grid.tiles * grid.groups) % x.Hk;
    const i64 h = key_head * group + head_group * grid.heads;
    s.tile.set(x, part / (grid.tiles * grid.groups * x.Hk), h,
               at_most(h + grid.heads, (key_head + 1) * group), tile * query_block,
               at_most(x.L, (tile + 1) * query_block));
    query_tile(x, s);
  });
}

template <class C>
Scratch scratch(const AttentionCall& x) {
  Carver carver{nullptr};
  Workspace<C>(carver, x, Grid(x));
  return {carver.used, 0};
}

template <class C>
void describe(const AttentionCall& x, char* text, std::size_t size) {
  const Grid grid(x);
  if (is_on_tiles<C>(x, query_block)) {
    std::snprintf(text, size, "tiles of %lld queries × %lld keys, products on AMX tiles of bf16",
                  static_cast<long long>(grid.columns), static_cast<long long>(at_most(key_block, x.T)));
    return;
  }
  std::snprintf(text, size, "tiles of %lld queries × %lld keys, keys %s, values %s, heads in a tile: %lld",
                static_cast<long long>(grid.columns), static_cast<long long>(at_most(key_block, x.T)),
                needs_copy<C>(x, x.k, x.d, true) ? "copied" : "in place",
                needs_copy<C>(x, x.v, x.dv, false) ? "copied" : "in place",
                static_cast<long long>(grid.heads));
}

template <class C>
constexpr AttentionKernel on_query_tiles{&scratch<C>, &run<C>, &describe<C>};
constexpr AttentionKernel nothing{[](const AttentionCall&) { return Scratch(); },
                                  [](const AttentionCall&, Worker&) {},
                                  [](const AttentionCall&, char*, std::size_t) {}};

const AttentionKernel& kernel_for(const AttentionCall& x) {
  if (is_empty(x)) return nothing;
  if (is_decoding(x)) return attention_decode;
  return x.type == DType::f64 ? on_query_tiles<double> : on_query_tiles<float>;
}

}  // namespace

constinit const AttentionKernel attention_forward{
    [](const AttentionCall& x) { return kernel_for(x).scratch(x); },
    [](const AttentionCall& x, Worker& w) { kernel_for(x).run(x, w); },
    [](const AttentionCall& x, char* text, std::size_t size) { kernel_for(x).choice(x, text, size); }};

}  // namespace tg::cpu::TG_ISA
