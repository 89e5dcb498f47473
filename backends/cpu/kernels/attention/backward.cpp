// FlashBackward [Stratos, FlashAttention §2.3, §D] by key blocks. First, the kernel computes u = (O ⊛
// z_O).sum − z_ξ. For each block of keys, it then iterates over the query tiles that attend to the block. It
// recomputes P = exp(A − ξ) and accumulates
//   z_V += Pᵀ z_O,  z_A = P ⊛ (z_O Vᵀ − u),  z_K += z_Aᵀ Q,  z_Q += z_A K.
// A block owns its rows of z_V and z_K. Several blocks add to the same tile of z_Q, and a counter per tile
// enforces a fixed order. Threads receive blocks in the same order, so no block waits for a later one.
#include <atomic>
#include <cstdio>

#include "backends/cpu/kernels/attention/score_tile.h"

namespace tg::cpu::TG_ISA {
namespace {

constexpr i64 query_block = 96;   // Γ
constexpr i64 key_block = 192;    // Λ
constexpr i64 whole_block = 256;  // up to this number, all keys are one block

// Λ of a call. z_Q of a 16-bit type cannot be accumulated in place. Each tile of z_Q then needs a separate
// pass over the keys, unless a single block contains all keys.
template <class C>
i64 keys_at_once(const AttentionCall& x) {
  return size_of(x.type) != sizeof(C) && x.T <= whole_block ? whole_block : key_block;
}
template <class C>
bool has_query_pass(const AttentionCall& x) {
  return size_of(x.type) != sizeof(C) && x.T > whole_block;
}

// Memory that all threads share.
template <class C>
struct SharedByThreads {
  SharedByThreads(Carver& carver, const AttentionCall& x) {
    tiles = ceil_div(x.L, query_block);
    u = carver.take<C>(query_heads(x) * x.L);
    shift = carver.take<C>(query_heads(x) * x.L), offset = carver.take<C>(query_heads(x) * x.L);
    from = carver.take<std::int32_t>(x.B * tiles), to = carver.take<std::int32_t>(x.B * tiles);
    done = carver.take<std::atomic<std::uint32_t>>(query_heads(x) * tiles);
    summed = carver.take<std::atomic<std::uint32_t>>(x.needs_z_captured != 0);
    for (int k = 0; x.needs_z_captured >> k; ++k)
      captured[k] = x.needs_z_captured >> k & 1 ? carver.take<double>(x.captured[k].layout.numel()) : nullptr;
  }
  i64 tiles;
  C* u;                              // [B, H, L]
  C *shift, *offset;                 // [B, H, L]: t and o of P = 2^((A − t)·f − o); o = ∞ if P is 0
  std::int32_t *from, *to;           // [B, tiles]: keys that each query tile attends to
  std::atomic<std::uint32_t>* done;  // [B, H, tiles]: number of key blocks that have added to z_Q
  // Gradients of captured tensors, or null. Key blocks add their sums in order; `summed` counts the blocks.
  double* captured[AttentionExpression::max_captured] = {};
  std::atomic<std::uint32_t>* summed;
};

template <class C>
struct Workspace {
  Workspace(Carver& carver, const AttentionCall& x) {
    constexpr int W = Tile<C>::width;
    const i64 n = at_most(query_block, round_up(x.L, 16)), keys = at_most(keys_at_once<C>(x), x.T);
    padded_d = round_up(x.d, W), padded_dv = round_up(x.dv, W);
    tile.carve(carver, n);
    shift = carver.take<C>(n), offset = carver.take<C>(n), u = carver.take<C>(n);
    q = carver.take<C>(x.d * n), z = carver.take<C>(x.dv * n);
    p = carver.take<C>(keys * n), za = carver.take<C>(keys * n);
    zk = carver.take<C>(keys * padded_d), zv = carver.take<C>(keys * padded_dv);
    options.carve(carver, x, keys, n, keys_at_once<C>(x));
    const bool tiles = is_on_tiles<C>(x, 1);
    work = tiles ? carver.take<float>(tile_product_floats(at_least(keys, n), at_least(x.d, x.dv))) : nullptr;
    const auto copy = [&](const AttentionCall::TensorView& a, i64 rows, i64 padded, i64 size, bool left,
                          bool right) {
      const bool needed = !tiles && ((left && needs_copy<C>(x, a, size, true)) ||
                                     (right && needs_copy<C>(x, a, size, false)));
      return Copy{needed, needed ? carver.take<C>(rows * padded) : nullptr};
    };
    k = copy(x.k, keys, padded_d, x.d, true, true), v = copy(x.v, keys, padded_dv, x.dv, true, false);
    q_rows = copy(x.q, n, padded_d, x.d, false, true), z_rows = copy(x.z_o, n, padded_dv, x.dv, false, true);
    zq = size_of(x.type) != sizeof(C) ? carver.take<C>(n * padded_d) : nullptr;
    zb = x.z_bias.data ? carver.take<C>(keys * n) : nullptr;
  }
  struct Copy {
    bool needed;
    C* data;
  };
  QueryTile<C> tile;
  i64 padded_d, padded_dv;
  C *shift, *offset, *u;  // [width]: as in SharedByThreads; u is scaled like z
  C *q, *z;               // [d × width], [dv × width]: Qᵀ and z_Oᵀ, scaled
  C *p, *za;              // [keys × width]: A, then Pᵀ with dropout; z_P, then z_Aᵀ
  C *zk, *zv;             // [keys × padded]
  OptionTiles<C> options;
  Copy k, v, q_rows, z_rows;
  C* zq;        // [count × padded_d], for types that cannot accumulate in place
  C* zb;        // [keys × width]: the bias gradient of a tile
  float* work;  // scratch for GEMMs on tiles; null: GEMMs run on vectors
  C factor;     // factor of z_O in the loaded tile
};

// Calls load_rows. Does nothing if GEMMs run on tiles, because these read the operands in place.
template <class C>
Rows<C> rows_of(const AttentionCall& x, const Workspace<C>& s, const AttentionCall::TensorView& a, i64 b,
                i64 h, i64 row0, i64 rows, i64 size, C* copy, i64 padded) {
  return s.work ? Rows<C>{} : load_rows(x, a, b, h, row0, rows, size, copy, padded);
}

// Loads the queries of a tile, multiplied by ScoreUnit::of_q.
template <class C>
void load_scaled_queries(const AttentionCall& x, const Workspace<C>& s) {
  const QueryTile<C>& t = s.tile;
  if (!s.work) load_transposed(x, x.q, t, x.d, ScoreUnit<C>(x).of_q, s.q);
  if (x.cu_q)  // queries that belong to no sequence have undefined contents
    for (i64 c = 0; c < t.count; ++c)
      for (i64 e = 0; t.first[c] >= t.last[c] && e < x.d; ++e) s.q[e * t.width + c] = 0;
}

// Computes t = c and o = log2 π for the rows of a tile whose |ξ| exceeds most_plain_lse, by a pass over their
// keys. The gradients are computed from the same scores, so rounding of scores and ξ does not change the sum
// of P.
template <class C>
void normalize_far_rows(const AttentionCall& x, const SharedByThreads<C>& all, Workspace<C>& s, i64 b,
                        i64 h) {
  const QueryTile<C>& t = s.tile;
  const i64 row = (b * x.H + h) * x.L + t.i0;
  const C* lse = static_cast<const C*>(x.lse) + row;
  const auto is_far = [&](i64 c) {
    return __builtin_fabs(lse[c]) > most_plain_lse(x.type) && lse[c] != static_cast<C>(-__builtin_inf());
  };
  bool any = false;
  for (i64 c = 0; c < t.count; ++c) any |= is_far(c);
  if (!any) return;
  C *const top = s.shift, *const sum = s.offset, *const shrink = s.u;
  const C exponent = ScoreUnit<C>(x).exponent;
  load_scaled_queries(x, s);
  start_columns(x, t, top, sum);
  for (i64 key0 = t.from; key0 < t.to; key0 += key_block) {
    const i64 keys = at_most(key_block, t.to - key0);
    const Rows<C> k = rows_of(x, s, x.k, b, h / (x.H / x.Hk), key0, keys, x.d, s.k.data, s.padded_d);
    scores(x, t, key0, keys, k, s.q, s.p, s.options, s.work);
    softmax_step(keys, t.width, exponent, s.p, top, sum, shrink);
  }
  for (i64 c = 0; c < t.count; ++c)
    if (is_far(c)) {
      const ExponentBase<C> base = exponent_base<C>(top[c], exponent);
      all.shift[row + c] = base.shift;
      all.offset[row + c] = sum[c] == 0 ? static_cast<C>(__builtin_inf())
                                        : base.offset + static_cast<C>(::log2(static_cast<double>(sum[c])));
    }
}

// Computes u = (O ⊛ z_O).sum − z_ξ, t and o of a tile's rows, and the range of keys that the tile attends to.
// If the range is empty, sets z_Q of the tile to 0.
template <class C>
void row_stats(const AttentionCall& x, const SharedByThreads<C>& all, Workspace<C>& s, i64 b, i64 h,
               i64 tile) {
  using V = vector_t<C>;
  const i64 i0 = tile * query_block, i1 = at_most(x.L, i0 + query_block);
  s.tile.set(x, b, h, h + 1, i0, i1);
  if (h == 0) {
    all.from[b * all.tiles + tile] = static_cast<std::int32_t>(s.tile.from);
    all.to[b * all.tiles + tile] = static_cast<std::int32_t>(s.tile.to);
  }
  all.done[(b * x.H + h) * all.tiles + tile].store(0, std::memory_order_relaxed);
  with_storage<C>(x.type, [&]<class S>(const S*) {
    constexpr int W = lanes<V>;
    for (i64 i = i0; i < i1; ++i) {
      const S* o = static_cast<const S*>(x.o.data) + element_offset<C>(x.o, b, h, i);
      const S* z = static_cast<const S*>(x.z_o.data) + element_offset<C>(x.z_o, b, h, i);
      V sum = {};
      i64 e = 0;
      for (; e + W <= x.dv; e += W) sum = fma(load(o + e), load(z + e), sum);
      if (e < x.dv) {
        const int rest = static_cast<int>(x.dv - e);
        sum = fma(load_partial(o + e, rest), load_partial(z + e, rest), sum);
      }
      const i64 row = (b * x.H + h) * x.L + i;
      all.u[row] = reduce_add(sum) - (x.z_lse ? static_cast<const C*>(x.z_lse)[row] : C{0});
    }
    if (s.tile.from == s.tile.to) {
      for (i64 i = i0; i < i1; ++i) {
        S* zq = static_cast<S*>(x.z_q.data) + element_offset<C>(x.z_q, b, h, i);
        for (i64 e = 0; e < x.d; ++e) zq[e] = S{};
      }
    }
  });
  const C infinite = static_cast<C>(__builtin_inf());
  for (i64 row = (b * x.H + h) * x.L + i0, n = 0; n < i1 - i0; ++n, ++row) {
    const C lse = static_cast<const C*>(x.lse)[row];
    all.shift[row] = 0, all.offset[row] = lse == -infinite ? infinite : lse * static_cast<C>(log2_e);
  }
  normalize_far_rows(x, all, s, b, h);
}

// Loads a query tile for a key block: Qᵀ, factor·z_Oᵀ, t and o of its rows, and factor·u.
template <class C>
void load_queries(const AttentionCall& x, const SharedByThreads<C>& all, Workspace<C>& s, i64 b, i64 h,
                  i64 tile, C factor) {
  QueryTile<C>& t = s.tile;
  t.set(x, b, h, h + 1, tile * query_block, at_most(x.L, (tile + 1) * query_block));
  s.factor = factor;
  load_scaled_queries(x, s);
  if (!s.work) load_transposed(x, x.z_o, t, x.dv, factor, s.z);
  const i64 row = (b * x.H + h) * x.L + t.i0;
  for (i64 c = 0; c < t.width; ++c) {
    const bool there = c < t.count;
    s.shift[c] = there ? all.shift[row + c] : C{0};
    s.offset[c] = there ? all.offset[row + c] : static_cast<C>(__builtin_inf());
    s.u[c] = there ? all.u[row + c] * factor : C{0};
  }
}

// p = 2^((A − t)·f − o), za = p ⊛ (z_P ⊛ keep − u) ⊛ slope, then p = p ⊛ keep. All are computed in place.
template <class C, bool Keep, bool Slope>
void probabilities_and_gradients(i64 keys, C exponent, const Workspace<C>& s) {
  using V = vector_t<C>;
  const i64 width = s.tile.width;
  const V f = splat<V>(exponent);
  for (i64 c = 0; c < width; c += Tile<C>::width) {
    const V shift = load(s.shift + c), offset = -load(s.offset + c), u = load(s.u + c);
    if (is_any(shift != V{}))
      for (i64 j = 0; j < keys; ++j) store(s.p + j * width + c, load(s.p + j * width + c) - shift);
    for (i64 j = 0; j < keys; ++j) {
      const i64 e = j * width + c;
      const V p = exp2_of_score(fma(load(s.p + e), f, offset));
      V zp = load(s.za + e);
      if constexpr (Keep) {
        const V keep = load(s.options.keep + e);
        zp *= keep;
        store(s.p + e, p * keep);
      } else {
        store(s.p + e, p);
      }
      V za = p * (zp - u);
      if constexpr (Slope) za *= load(s.options.slope + e);
      store(s.za + e, za);
    }
  }
}

// Computes Pᵀ and z_Aᵀ (times the factor of load_queries) of the loaded query tile and `keys` keys, starting
// at key0. If `through_cap` is true, z_A is the gradient of the scores before the cap and the
// score function. Otherwise it is the gradient of the scores A. In the first case, a call with an expression
// has the factor 1, sums the gradients of captured tensors if `sums` is set, and multiplies z_A by the
// scale.
template <class C>
void score_gradient(const AttentionCall& x, Workspace<C>& s, i64 key0, i64 keys, const Rows<C>& k,
                    const Rows<C>& v, bool through_cap) {
  const QueryTile<C>& t = s.tile;
  scores(x, t, key0, keys, k, s.q, s.p, s.options, s.work);
  if (multiply_on_tiles(s.work, keys, t.count, x.dv, rows_at(x.v, t.b, t.h0 / (x.H / x.Hk), key0),
                        rows_at(x.z_o, t.b, t.h0, t.i0).transposed(), s.za, t.width, false))
    multiply_all(keys * t.width, s.factor, s.za);
  else
    multiply<C>(keys, t.width, x.dv, {v.data, v.row, 1}, {s.z, t.width}, s.za, t.width, nullptr, 0);
  if (x.dropout > 0) dropout_factors(x, t, key0, keys, s.options.keep);
  const bool slope = s.options.slope && through_cap && !x.plan;
  const C f = ScoreUnit<C>(x).exponent;
  if (x.dropout > 0) {
    slope ? probabilities_and_gradients<C, true, true>(keys, f, s)
          : probabilities_and_gradients<C, true, false>(keys, f, s);
  } else {
    slope ? probabilities_and_gradients<C, false, true>(keys, f, s)
          : probabilities_and_gradients<C, false, false>(keys, f, s);
  }
  if (!x.plan || !through_cap) return;
  if (s.options.expression.sums) add_captured(x, t, s.options.expression, keys, s.za);
  if (s.options.slope)
    for (i64 e = 0; e < keys * t.width; e += Tile<C>::width)
      store(s.za + e, load(s.za + e) * load(s.options.slope + e));
  multiply_all(keys * t.width, static_cast<C>(x.scale), s.za);
}

template <class C>
void write_rows(const AttentionCall& x, const AttentionCall::TensorView& to, i64 b, i64 h, i64 row0, i64 rows,
                i64 size, const C* from, i64 padded) {
  constexpr int W = Tile<C>::width;
  with_storage<C>(x.type, [&]<class S>(const S*) {
    for (i64 r = 0; r < rows; ++r) {
      S* out = static_cast<S*>(to.data) + element_offset<C>(to, b, h, row0 + r);
      i64 e = 0;
      for (; e + W <= size; e += W) store(out + e, load(from + r * padded + e));
      if (e < size) store_partial(out + e, load(from + r * padded + e), static_cast<int>(size - e));
    }
  });
}

template <class C>
C* in_place(const AttentionCall::TensorView& a, i64 b, i64 h, i64 row) {
  return static_cast<C*>(a.data) + element_offset<C>(a, b, h, row);
}

// Sets the slices of captured tensors to those of a key block, with gradients 0.
template <class C>
void start_slices(const AttentionCall& x, Workspace<C>& s, i64 b, i64 h, i64 key0) {
  ExpressionTile<C>& tile = s.options.expression;
  tile.first_b = b, tile.first_h = h, tile.first_key = key0;
  for (int k = 0; x.needs_z_captured >> k; ++k)
    if (tile.sum[k])
      for (i64 e = 0; e < tile.slice[k].elements; ++e) tile.sum[k][e] = 0;
}

// Adds the gradients of the slices to the gradients of the captured tensors.
template <class C>
void add_slices(const AttentionCall& x, const SharedByThreads<C>& all, const Workspace<C>& s) {
  const ExpressionTile<C>& tile = s.options.expression;
  for (int k = 0; x.needs_z_captured >> k; ++k) {
    if (!tile.sum[k]) continue;
    const CapturedSlice& slice = tile.slice[k];
    const Shape& shape = x.captured[k].layout.shape;
    for (i64 e = 0; e < slice.elements; ++e) {
      i64 to = 0;
      bool exists = true;  // the last slices of an axis may be shorter
      for (int a = 0; a < slice.rank; ++a) {
        const i64 index = slice.start(a, tile.first_b, tile.first_h, tile.first_key) +
                          e / slice.stride[a] % slice.extent[a];
        exists &= index < shape[a];
        to = to * shape[a] + index;
      }
      if (exists) all.captured[k][to] += tile.sum[k][e];
    }
  }
}

// Converts the gradient of a captured tensor to its dtype.
template <class C>
void write_captured(const AttentionCall& x, const SharedByThreads<C>& all, int k) {
  const Arg* to = x.z_captured;
  for (int before = 0; before < k; ++before) to += x.needs_z_captured >> before & 1;
  const auto convert = [&]<class S>(const S*) {
    for (i64 e = 0; e < to->layout.numel(); ++e)
      reinterpret_cast<S*>(to->data)[e] = static_cast<S>(static_cast<compute_t<S>>(all.captured[k][e]));
  };
  if (to->dtype == DType::f64) return convert(static_cast<const double*>(nullptr));
  with_storage<float>(to->dtype, convert);
}

// Computes z_K and z_V of one block. If z_Q is accumulated in place, also adds the block's contributions to
// z_Q. If there is a single block, computes all of z_Q.
template <class C>
void key_item(const AttentionCall& x, const SharedByThreads<C>& all, Workspace<C>& s, Worker& w, i64 b,
              i64 key_head, i64 block) {
  const i64 key0 = block * keys_at_once<C>(x), keys = at_most(keys_at_once<C>(x), x.T - key0),
            group = x.H / x.Hk;
  const Rows<C> k = rows_of(x, s, x.k, b, key_head, key0, keys, x.d, s.k.data, s.padded_d);
  const Rows<C> v = rows_of(x, s, x.v, b, key_head, key0, keys, x.dv, s.v.data, s.padded_dv);
  ExpressionTile<C>& expression = s.options.expression;
  expression.sums = x.needs_z_captured != 0;
  start_slices(x, s, b, key_head * group, key0);
  bool first = true;
  const auto clear = [&] {
    for (i64 e = 0; e < keys * s.padded_d; ++e) s.zk[e] = 0;
    for (i64 e = 0; e < keys * s.padded_dv; ++e) s.zv[e] = 0;
  };
  for (i64 h = key_head * group; h < (key_head + 1) * group; ++h)
    for (i64 tile = 0; tile < all.tiles; ++tile) {
      const i64 from = all.from[b * all.tiles + tile], to = all.to[b * all.tiles + tile];
      if (from >= key0 + keys || to <= key0) continue;
      load_queries(x, all, s, b, h, tile, x.plan ? C{1} : static_cast<C>(x.scale));
      const QueryTile<C>& t = s.tile;
      // Only keys that the tile attends to are multiplied. Other keys have undefined contents, and 0·NaN is
      // NaN.
      const i64 start = at_least(key0, from), n = at_most(key0 + keys, to) - start, skip = start - key0;
      score_gradient(x, s, start, n, k.from_row(skip), v.from_row(skip), true);
      // Queries that belong to no sequence also have undefined contents, so they are skipped.
      const i64 c0 = x.cu_q ? at_least(0, x.cu_q[0] - t.i0) : 0,
                c1 = x.cu_q ? at_most(t.count, x.cu_q[x.segments] - t.i0) : t.count;
      const Rows<C> q = rows_of(x, s, x.q, b, h, t.i0, t.count, x.d, s.q_rows.data, s.padded_d);
      const Rows<C> z = rows_of(x, s, x.z_o, b, h, t.i0, t.count, x.dv, s.z_rows.data, s.padded_dv);
      const bool fresh = first && n == keys;
      if (first && !fresh) clear();
      first = false;
      C *zv = s.zv + skip * s.padded_dv, *zk = s.zk + skip * s.padded_d;
      add_product<C>(s.work, n, x.dv, c1 - c0, {s.p + c0, t.width, 1}, rows_at(x.z_o, b, h, t.i0 + c0),
                     z.from_row(c0), zv, s.padded_dv, !fresh);
      add_product<C>(s.work, n, x.d, c1 - c0, {s.za + c0, t.width, 1}, rows_at(x.q, b, h, t.i0 + c0),
                     q.from_row(c0), zk, s.padded_d, !fresh);
      if (has_query_pass<C>(x)) continue;
      const Rows<C> own = k.from_row(skip);
      if (s.zq) {
        add_product<C>(s.work, t.count, x.d, n, {s.za, 1, t.width}, rows_at(x.k, b, key_head, start), own,
                       s.zq, s.padded_d, false);
        write_rows(x, x.z_q, b, h, t.i0, t.count, x.d, s.zq, s.padded_d);
        continue;
      }
      std::atomic<std::uint32_t>& done = all.done[(b * x.H + h) * all.tiles + tile];
      const std::uint32_t ticket = static_cast<std::uint32_t>(block - from / key_block);
      w.await(done, ticket);
      C* zq = in_place<C>(x.z_q, b, h, t.i0);
      multiply<C>(t.count, x.d, n, {s.za, 1, t.width}, {own.data, own.row, own.form}, zq, x.z_q.row,
                  ticket == 0 ? nullptr : zq, x.z_q.row);
      w.advance(done, ticket + 1);
    }
  if (first) clear();
  write_rows(x, x.z_k, b, key_head, key0, keys, x.d, s.zk, s.padded_d);
  write_rows(x, x.z_v, b, key_head, key0, keys, x.dv, s.zv, s.padded_dv);
  if (!expression.sums) return;
  expression.sums = false;
  const auto ticket = static_cast<std::uint32_t>((block * x.B + b) * x.Hk + key_head);
  w.await(*all.summed, ticket);
  add_slices(x, all, s);
  w.advance(*all.summed, ticket + 1);
}

// Computes z_Q of one query tile by a separate pass over the keys; see has_query_pass.
template <class C>
void query_item(const AttentionCall& x, const SharedByThreads<C>& all, Workspace<C>& s, i64 b, i64 h,
                i64 tile) {
  const i64 from = all.from[b * all.tiles + tile], to = all.to[b * all.tiles + tile],
            key_head = h / (x.H / x.Hk);
  if (from == to) return;
  load_queries(x, all, s, b, h, tile, x.plan ? C{1} : static_cast<C>(x.scale));
  const QueryTile<C>& t = s.tile;
  for (i64 key0 = from; key0 < to; key0 += key_block) {
    const i64 keys = at_most(key_block, to - key0);
    const Rows<C> k = rows_of(x, s, x.k, b, key_head, key0, keys, x.d, s.k.data, s.padded_d);
    const Rows<C> v = rows_of(x, s, x.v, b, key_head, key0, keys, x.dv, s.v.data, s.padded_dv);
    score_gradient(x, s, key0, keys, k, v, true);
    add_product<C>(s.work, t.count, x.d, keys, {s.za, 1, t.width}, rows_at(x.k, b, key_head, key0), k, s.zq,
                   s.padded_d, key0 != from);
  }
  write_rows(x, x.z_q, b, h, t.i0, t.count, x.d, s.zq, s.padded_d);
}

// z_sink[h] = −Σ exp(sink − ξ)·u over the rows of the head.
template <class C>
void sink_item(const AttentionCall& x, const SharedByThreads<C>& all, i64 h) {
  with_storage<C>(x.type, [&]<class S>(const S*) {
    const ScoreUnit<C> unit(x);
    const C sink = unit.of(static_cast<C>(static_cast<const S*>(x.sink)[h]));
    double sum = 0;
    for (i64 b = 0; b < x.B; ++b)
      for (i64 i = 0; i < x.L; ++i) {
        const i64 row = (b * x.H + h) * x.L + i;
        const double apart = static_cast<double>(sink - all.shift[row]) * static_cast<double>(unit.exponent);
        if (all.offset[row] != static_cast<C>(__builtin_inf()))
          sum -= ::exp2(apart - static_cast<double>(all.offset[row])) * static_cast<double>(all.u[row]);
      }
    static_cast<S*>(x.z_sink)[h] = static_cast<S>(static_cast<C>(sum));
  });
}

// Divides the bias gradient into parts. One thread computes each part. A part has one index per axis of the
// bias that is not broadcast.
struct BiasGrid {
  BiasGrid(const AttentionCall& x) {
    const AttentionCall::Bias& z = x.z_bias;
    batches = z.batch ? x.B : 1, heads = z.head ? x.H : 1;
    tiles = z.row ? ceil_div(x.L, query_block) : 1, blocks = z.col ? ceil_div(x.T, key_block) : 1;
  }
  i64 parts() const { return batches * heads * tiles * blocks; }
  i64 batches, heads, tiles, blocks;
};

// Computes one part. Recomputes z_A tile by tile, and sums it over the broadcast axes of the bias in a fixed
// order. If the bias is broadcast over rows or columns, the summed tile is then reduced over these.
template <class C>
void bias_item(const AttentionCall& x, const SharedByThreads<C>& all, Workspace<C>& s, const BiasGrid& grid,
               i64 part) {
  constexpr int W = Tile<C>::width;
  const AttentionCall::Bias& z = x.z_bias;
  const i64 block = part % grid.blocks, tile = part / grid.blocks % grid.tiles;
  const i64 head = part / (grid.blocks * grid.tiles) % grid.heads,
            batch = part / (grid.blocks * grid.tiles * grid.heads);
  const i64 b1 = z.batch ? batch + 1 : x.B, h1 = z.head ? head + 1 : x.H, t1 = z.row ? tile + 1 : all.tiles;
  const i64 j1 = z.col ? block + 1 : ceil_div(x.T, key_block);
  const i64 width = at_most(query_block, round_up(x.L, 16)), tall = at_most(key_block, x.T);
  for (i64 e = 0; e < width * tall; ++e) s.zb[e] = 0;
  for (i64 b = batch; b < b1; ++b)
    for (i64 h = head; h < h1; ++h)
      for (i64 t = tile; t < t1; ++t) {
        const i64 from = all.from[b * all.tiles + t], to = all.to[b * all.tiles + t];
        bool loaded = false;
        for (i64 j = block; j < j1; ++j) {
          const i64 key0 = j * key_block, keys = at_most(key_block, x.T - key0), key_head = h / (x.H / x.Hk);
          if (from >= key0 + keys || to <= key0) continue;
          if (!loaded) load_queries(x, all, s, b, h, t, C{1});
          loaded = true;
          const Rows<C> k = rows_of(x, s, x.k, b, key_head, key0, keys, x.d, s.k.data, s.padded_d);
          const Rows<C> v = rows_of(x, s, x.v, b, key_head, key0, keys, x.dv, s.v.data, s.padded_dv);
          const i64 start = at_least(key0, from), n = at_most(key0 + keys, to) - start, skip = start - key0;
          score_gradient(x, s, start, n, k.from_row(skip), v.from_row(skip), false);
          for (i64 r = 0; r < n; ++r) {
            C* zb = s.zb + (skip + r) * width;
            for (i64 c = 0; c < s.tile.width; c += W)
              store(zb + c, load(zb + c) + load(s.za + r * s.tile.width + c));
          }
        }
      }
  const i64 rows = z.row ? at_most(query_block, x.L - tile * query_block) : 1;
  const i64 columns = z.col ? at_most(key_block, x.T - block * key_block) : 1;
  with_storage<C>(x.type, [&]<class S>(const S*) {
    S* out = static_cast<S*>(z.data) + batch * z.batch + head * z.head + tile * query_block * z.row +
             block * key_block * z.col;
    for (i64 i = 0; i < rows; ++i)
      for (i64 j = 0; j < columns; ++j) {
        C sum = 0;
        for (i64 r = j; r < (z.col ? j + 1 : tall); ++r)
          for (i64 c = i; c < (z.row ? i + 1 : width); ++c) sum += s.zb[r * width + c];
        out[i * z.row + j * z.col] = static_cast<S>(sum);
      }
  });
}

template <class C>
void run(const AttentionCall& x, Worker& w) {
  Carver common{w.shared}, own{w.scratch};
  const SharedByThreads<C> all(common, x);
  Workspace<C> s(own, x);
  s.options.expression.worker = &w;
  const TilesInUse<TileUnit> tiles(s.work);
  w.each(x.needs_z_captured != 0, [&](i64) {
    all.summed->store(0, std::memory_order_relaxed);
    for (int k = 0; x.needs_z_captured >> k; ++k)
      for (i64 e = 0; all.captured[k] && e < x.captured[k].layout.numel(); ++e) all.captured[k][e] = 0;
  });
  w.each(query_heads(x) * all.tiles, [&](i64 part) {
    row_stats(x, all, s, part / (all.tiles * x.H), part / all.tiles % x.H, part % all.tiles);
  });
  if (!w.barrier()) return;
  const i64 heads = key_heads(x), blocks = ceil_div(x.T, keys_at_once<C>(x));
  const auto keys = [&](i64 part) {  // block by block, so few threads work on one head
    key_item(x, all, s, w, part % heads / x.Hk, part % x.Hk, part / heads);
  };
  if (blocks == 1 && x.needs_z_captured == 0) {
    w.each(heads, keys);
  } else {
    w.each_in_order(heads * blocks, keys);
  }
  if (has_query_pass<C>(x))
    w.each(query_heads(x) * all.tiles, [&](i64 part) {
      query_item(x, all, s, part / (all.tiles * x.H), part / all.tiles % x.H,
                 all.tiles - 1 - part % all.tiles);
    });
  if (x.z_sink) w.each(x.H, [&](i64 h) { sink_item(x, all, h); });
  if (x.z_bias.data) {
    const BiasGrid grid(x);
    w.each(grid.parts(), [&](i64 part) { bias_item(x, all, s, grid, part); });
  }
  if (x.needs_z_captured == 0 || !w.barrier()) return;
  w.each(AttentionExpression::max_captured, [&](i64 k) {
    if (x.needs_z_captured >> k & 1) write_captured(x, all, static_cast<int>(k));
  });
}

template <class C>
Scratch scratch(const AttentionCall& x) {
  Carver common{nullptr}, own{nullptr};
  SharedByThreads<C>(common, x);
  Workspace<C>(own, x);
  return {own.used, common.used};
}

void describe(const AttentionCall& x, char* text, std::size_t size) {
  const i64 keys = x.type == DType::f64 ? keys_at_once<double>(x) : keys_at_once<float>(x);
  const bool tiles = x.type != DType::f64 && is_on_tiles<float>(x, 1);
  std::snprintf(text, size, "tiles of %lld keys × %lld queries, %lld blocks of keys in order%s",
                static_cast<long long>(at_most(keys, x.T)), static_cast<long long>(at_most(query_block, x.L)),
                static_cast<long long>(ceil_div(x.T, keys)), tiles ? ", products on AMX tiles of bf16" : "");
}

}  // namespace

constinit const AttentionKernel attention_backward{
    [](const AttentionCall& x) { return x.type == DType::f64 ? scratch<double>(x) : scratch<float>(x); },
    [](const AttentionCall& x, Worker& w) { x.type == DType::f64 ? run<double>(x, w) : run<float>(x, w); },
    &describe};

}  // namespace tg::cpu::TG_ISA
