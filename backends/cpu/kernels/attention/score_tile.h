// Shared by the forward and backward of attention: the query tile, the keys that the tile attends to, and the
// score tile Aᵀ[keys × queries]. Scores are in the units of ScoreUnit, and all options are applied to them.
// Keys are rows and queries are lanes, so a softmax needs no horizontal sums. The micro-kernel can read K in
// place, as the broadcast operand.
#pragma once

#include "backends/cpu/kernels/attention/expression.h"
#include "backends/cpu/kernels/attention/tile_products.h"
#include "backends/cpu/kernels/pack.h"
#include "backends/cpu/kernels/philox.h"
#include "backends/cpu/kernels/simd_math.h"

namespace tg::cpu::TG_ISA {

constexpr double log2_e = 1.4426950408889634074, ln_2 = 0.69314718055994530942;

// 2^x, for x at most slightly above 0. The error is at most 2 ulp. 2^-∞ = 0.
TG_INLINE F32 exp2_of_score(F32 x) {
#if TG_VECTOR_BYTES == 64
  const F32 r = (F32)_mm512_reduce_ps((__m512)x, 9);  // x - floor(x); the polynomial is fitted to [0, 1)
  const F32 p = horner(r, 0x1.ec3216p-10f, 0x1.269008p-7f, 0x1.c95448p-5f, 0x1.ebd5a8p-3f, 0x1.62e4f6p-1f,
                       0x1.fffffep-1f);
  return (F32)_mm512_scalef_ps((__m512)p, (__m512)x);  // p · 2^floor(x)
#else
  return exp2(x);
#endif
}
TG_INLINE F64 exp2_of_score(F64 x) {
  return exp2(x);
}

// ---- reading operands: rows of an operand converted to C ----

template <class C>
i64 element_offset(const AttentionCall::TensorView& a, i64 b, i64 h, i64 row) {
  return b * a.batch + h * a.head + row * a.row;
}

// a = factor·a
template <class C>
void multiply_all(i64 elements, C factor, C* a) {
  if (factor == 1) return;
  const auto f = splat<vector_t<C>>(factor);
  for (i64 e = 0; e < elements; e += Tile<C>::width) store(a + e, load(a + e) * f);
}

// Transposes the rows of the queries to [size × width] and multiplies them by `factor`. Columns beyond the
// tile are 0.
template <class C>
void load_transposed(const AttentionCall& x, const AttentionCall::TensorView& a, const QueryTile<C>& t,
                     i64 size, C factor, C* to) {
  const i64 rows = t.i1 - t.i0;
  with_storage<C>(x.type, [&]<class S>(const S*) {
    const S* data = static_cast<const S*>(a.data);
    if (t.h1 - t.h0 == 1) {
      copy_transposed(rows, size, data + element_offset<C>(a, t.b, t.h0, t.i0), a.row, to, t.width);
    } else {  // few queries of several heads
      for (i64 e = 0; e < size * t.width; ++e) to[e] = 0;
      for (i64 c = 0; c < t.count; ++c) {
        const S* from = data + element_offset<C>(a, t.b, t.h0 + c / rows, t.i0 + c % rows);
        for (i64 e = 0; e < size; ++e) to[e * t.width + c] = static_cast<C>(from[e]);
      }
    }
  });
  multiply_all(size * t.width, factor, to);
}

// Rows row0 … row0+rows-1 of a head as an operand of the micro-kernel. They are used in place or converted
// into `copy`. Rows of `copy` have `padded` elements.
template <class C>
struct Rows {
  const C* data;
  i64 row;
  Form form;
  Rows from_row(i64 r) const { return {data + r * row, row, form}; }
};
template <class C>
Rows<C> load_rows(const AttentionCall& x, const AttentionCall::TensorView& a, i64 b, i64 h, i64 row0,
                  i64 rows, i64 size, C* copy, i64 padded) {
  const i64 offset = element_offset<C>(a, b, h, row0);
  if (!copy) return {static_cast<const C*>(a.data) + offset, a.row, Form::direct};
  with_storage<C>(x.type, [&]<class S>(const S*) {
    copy_rows(rows, size, padded, static_cast<const S*>(a.data) + offset, a.row, copy, padded);
  });
  return {copy, padded, Form::padded};
}

// Rows of a head in bf16, in place, starting at row0.
inline Strided<bfloat16> rows_at(const AttentionCall::TensorView& a, i64 b, i64 h, i64 row0) {
  return {static_cast<const bfloat16*>(a.data) + element_offset<float>(a, b, h, row0), a.row, 1};
}

// C[m×n] = A[m×k]·B[k×n], added to C if `adds` is true. If the GEMM runs on tiles (`work` is not null), B is
// the unconverted operand in place. Otherwise B is `rows`.
template <class C>
void add_product(float* work, i64 m, i64 n, i64 k, Strided<C> a, Strided<bfloat16> b, const Rows<C>& rows,
                 C* c, i64 ld, bool adds) {
  if (multiply_on_tiles(work, m, n, k, a, b, c, ld, adds)) return;
  multiply<C>(m, n, k, {a.data, a.row, a.col}, {rows.data, rows.row, rows.form}, c, ld, adds ? c : nullptr,
              ld);
}

// Whether rows must be copied before use, for one of these reasons:
// - Their dtype is not C.
// - Their length makes vector loads partial, and partial loads are slow on this machine.
// - They are the broadcast operand, and all rows map to the same sets of the L1 cache.
template <class C>
bool needs_copy(const AttentionCall& x, const AttentionCall::TensorView& a, i64 size, bool broadcast) {
  if (size_of(x.type) != sizeof(C)) return true;
  if (broadcast) return a.row * static_cast<i64>(sizeof(C)) % 4096 == 0;
  return TG_VECTOR_BYTES == 16 && size % Tile<C>::width != 0;
}

// ---- the score tile ----

// Extra tiles [keys × width] that options need, or null if an option is off.
template <class C>
struct OptionTiles {
  C* bias;   // the bias, transposed
  C* slope;  // 1 - tanh² times the slope of the score function, for the gradient through them
  C* keep;   // dropout factors
  ExpressionTile<C> expression;

  // key_block: keys of a block of the backward; 0 in a forward
  void carve(Carver& carver, const AttentionCall& x, i64 keys, i64 columns, i64 key_block) {
    bias = x.bias.data ? carver.take<C>(keys * columns) : nullptr;
    const bool has_slope = x.softcap != 0 || (x.plan && expression_of(x).slope >= 0);
    slope = has_slope && key_block > 0 ? carver.take<C>(keys * columns) : nullptr;
    expression.carve(carver, x, keys, columns, key_block);
    keep = x.dropout > 0 ? carver.take<C>(keys * columns) : nullptr;
  }
};

// The units of a score tile. Without softcap, bias and expression, a score is q·k, without the scale. If
// q·scale were rounded, differences between large scores would be inaccurate.
template <class C>
struct ScoreUnit {
  explicit ScoreUnit(const AttentionCall& x) {
    const C plain = static_cast<C>(x.scale * log2_e);
    if (x.softcap == 0 && !x.bias.data && !x.plan && plain > 0) {
      exponent = plain, natural = static_cast<C>(x.scale);
      return;
    }
    exponent = static_cast<C>(log2_e);
    if (x.softcap != 0 || x.plan || !x.bias.data)  // otherwise, a bias is added to q·k times `scale`
      of_q = static_cast<C>(x.softcap != 0 ? x.scale / x.softcap : x.scale);
  }
  C of_q = 1;     // factor of q; then q·k is a score or the argument of tanh
  C exponent;     // factor that converts a score to an exponent of 2
  C natural = 1;  // factor that converts a score to A

  // Converts a sink to these units.
  C of(C a) const { return a / natural; }
};

// t and o of rows whose largest score is c; see most_plain_exponent. V is a vector or a scalar.
template <class V>
struct ExponentBase {
  V shift, offset;
};
template <class C>
TG_INLINE ExponentBase<C> exponent_base(C c, C exponent) {
  const C product = c * exponent;
  if (__builtin_fabs(product) <= most_plain_exponent) return {0, product};
  // c = −∞ if there are no keys: exp(−∞ − 0) = 0, not NaN.
  return {c == static_cast<C>(-__builtin_inf()) ? C{0} : c, 0};
}
template <class C>
TG_INLINE ExponentBase<vector_t<C>> exponent_base(vector_t<C> c, C exponent) {
  using V = vector_t<C>;
  const V zero = {}, product = c * splat<V>(exponent);
  const auto is_plain = abs(product) <= splat<V>(static_cast<C>(most_plain_exponent));
  return {select(is_plain | (c == splat<V>(static_cast<C>(-__builtin_inf()))), zero, c),
          select(is_plain, product, zero)};
}
// exp(c_before − c_now), which is 1 if c has not changed.
template <class C>
TG_INLINE vector_t<C> shrinkage(vector_t<C> before, vector_t<C> now, C exponent) {
  using V = vector_t<C>;
  const V limit = splat<V>(static_cast<C>(most_plain_exponent)), f = splat<V>(exponent), a = before * f,
          z = now * f;
  const V apart = select((abs(a) <= limit) & (abs(z) <= limit), a - z, (before - now) * f);
  return select(now == before, splat<V>(C{1}), exp2_of_score(apart));
}

// ξ = c + log π, rounded, and the rounding error.
template <class C>
struct SplitLse {
  SplitLse(C c, C pi, const ScoreUnit<C>& unit) {
    const C infinite = static_cast<C>(__builtin_inf());
    value = pi > 0 ? C{0} : pi == 0 ? -infinite : pi /* NaN */;
    rest = 0;
    if (!(pi > 0)) return;
    const ExponentBase<C> at = exponent_base<C>(c, unit.exponent);
    const C log_pi = static_cast<C>(::log(static_cast<double>(pi)));
    const C base = at.shift != 0 ? at.shift : at.offset,
            factor = at.shift != 0 ? unit.natural : static_cast<C>(ln_2);
    value = base * factor + log_pi;
    if (value - value == 0) rest = __builtin_fma(base, factor, -value) + log_pi;
  }
  C value, rest;
};
template <class C>
void store_lse(const AttentionCall& x, i64 row, const SplitLse<C>& lse) {
  static_cast<C*>(x.lse)[row] = lse.value;
  if (x.lse_rest) static_cast<C*>(x.lse_rest)[row] = lse.rest;
}

template <class C>
void cap_scores(i64 elements, C cap, C* a, C* slope) {
  using V = vector_t<C>;
  const V one = splat<V>(C{1}), c = splat<V>(cap);
  for (i64 e = 0; e < elements; e += Tile<C>::width) {
    const V t = tanh(load(a + e));
    store(a + e, t * c);
    if (slope) store(slope + e, one - t * t);
  }
}

// Multiplies a[j][column of i] by `unit` and adds bias[b, h, i, j].
template <class C>
void add_bias(const AttentionCall& x, const QueryTile<C>& t, i64 key0, i64 keys, C by, C* a, C* tile) {
  using V = vector_t<C>;
  constexpr int W = Tile<C>::width;
  const V unit = splat<V>(by);
  const AttentionCall::Bias& bias = x.bias;
  const i64 rows = t.i1 - t.i0;
  with_storage<C>(x.type, [&]<class S>(const S*) {
    const S* data = static_cast<const S*>(bias.data) + t.b * bias.batch + key0 * bias.col;
    if (bias.col == 1 && bias.row != 0 && t.h1 - t.h0 == 1) {
      copy_transposed(rows, keys, data + t.h0 * bias.head + t.i0 * bias.row, bias.row, tile, t.width);
    } else {
      for (i64 c = 0; c < t.width; ++c) {
        const i64 h = t.h0 + c / rows, i = t.i0 + c % rows;
        for (i64 j = 0; j < keys; ++j)
          tile[j * t.width + c] =
              c < t.count ? static_cast<C>(data[h * bias.head + i * bias.row + j * bias.col]) : C{0};
      }
    }
  });
  for (i64 e = 0; e < keys * t.width; e += W) store(a + e, fma(load(a + e), unit, load(tile + e)));
}

// a = −∞ outside of each column's keys.
template <class C>
void mask_scores(const QueryTile<C>& t, i64 key0, i64 keys, C* a) {
  using V = vector_t<C>;
  constexpr int W = Tile<C>::width;
  const V none = splat<V>(static_cast<C>(-__builtin_inf()));
  for (i64 c = 0; c < t.width; c += W) {
    C low[W], high[W];  // within the tile, so that they are exact in C
    for (int l = 0; l < W; ++l) {
      const i64 first = t.first[c + l] - key0, last = t.last[c + l] - key0;
      low[l] = static_cast<C>(first < 0 ? 0 : first > keys ? keys : first);
      high[l] = static_cast<C>(last < 0 ? 0 : last > keys ? keys : last);
    }
    const V from = load(low), to = load(high);
    for (i64 j = 0; j < keys; ++j) {
      const V key = splat<V>(static_cast<C>(j));
      C* p = a + j * t.width + c;
      store(p, select((key >= from) & (key < to), load(p), none));
    }
  }
}

// Computes Aᵀ[keys × width] from the rows of K, starting at key0, and the packed queries [d × width]. If
// `work` is not null, the GEMM runs on tiles and reads the operands in place.
template <class C>
void scores(const AttentionCall& x, const QueryTile<C>& t, i64 key0, i64 keys, const Rows<C>& k, const C* q,
            C* a, const OptionTiles<C>& tiles, float* work) {
  if (multiply_on_tiles(work, keys, t.count, x.d, rows_at(x.k, t.b, t.h0 / (x.H / x.Hk), key0),
                        rows_at(x.q, t.b, t.h0, t.i0).transposed(), a, t.width, false))
    multiply_all(keys * t.width, ScoreUnit<C>(x).of_q, a);
  else
    multiply<C>(keys, t.width, x.d, {k.data, k.row, 1}, {q, t.width}, a, t.width, nullptr, 0);
  if (x.softcap != 0) cap_scores(keys * t.width, static_cast<C>(x.softcap), a, tiles.slope);
  if (x.plan) ExpressionRun<C>(x, t, tiles.expression, key0, keys).apply(a, tiles.slope, x.softcap != 0);
  if (x.bias.data)
    add_bias(x, t, key0, keys, x.softcap != 0 || x.plan ? C{1} : static_cast<C>(x.scale), a, tiles.bias);
  if (key0 < t.all_from || key0 + keys > t.all_to) mask_scores(t, key0, keys, a);
}

// ---- the softmax of a tile ----

// c_new = max(c, A.max), π = exp(c − c_new)·π + exp(A − c_new).sum, A = exp(A − c_new), down the columns.
// Returns whether any c has increased. G must then be scaled down.
template <class C>
bool softmax_step(i64 keys, i64 width, C exponent, C* a, C* top, C* sum, C* shrink) {
  using V = vector_t<C>;
  constexpr int W = Tile<C>::width;
  const V zero = {}, one = splat<V>(C{1}), f = splat<V>(exponent);
  auto grew = zero != zero;
  for (i64 c = 0; c < width; c += W) {
    C* column = a + c;
    const V before = load(top + c);
    V m0 = before, m1 = before, m2 = before, m3 = before;
    i64 j = 0;
    for (; j + 4 <= keys; j += 4) {
      m0 = max(m0, load(column + j * width)), m1 = max(m1, load(column + (j + 1) * width));
      m2 = max(m2, load(column + (j + 2) * width)), m3 = max(m3, load(column + (j + 3) * width));
    }
    for (; j < keys; ++j) m0 = max(m0, load(column + j * width));
    const V now = max(max(m0, m1), max(m2, m3));
    const ExponentBase<V> base = exponent_base<C>(now, exponent);
    if (is_any(base.shift != zero))
      for (j = 0; j < keys; ++j) store(column + j * width, load(column + j * width) - base.shift);
    const V offset = -base.offset;
    V s0 = zero, s1 = zero, s2 = zero, s3 = zero;
    for (j = 0; j + 4 <= keys; j += 4) {
      C* p = column + j * width;
      const V p0 = exp2_of_score(fma(load(p), f, offset)),
              p1 = exp2_of_score(fma(load(p + width), f, offset));
      const V p2 = exp2_of_score(fma(load(p + 2 * width), f, offset)),
              p3 = exp2_of_score(fma(load(p + 3 * width), f, offset));
      store(p, p0), store(p + width, p1), store(p + 2 * width, p2), store(p + 3 * width, p3);
      s0 += p0, s1 += p1, s2 += p2, s3 += p3;
    }
    for (; j < keys; ++j) {
      C* p = column + j * width;
      const V p0 = exp2_of_score(fma(load(p), f, offset));
      store(p, p0);
      s0 += p0;
    }
    const V factor = shrinkage<C>(before, now, exponent);
    store(top + c, now);
    store(shrink + c, factor);
    store(sum + c, fma(load(sum + c), factor, (s0 + s1) + (s2 + s3)));
    grew |= factor != one;
  }
  return is_any(grew);
}

// c and π before the first key.
template <class C>
void start_columns(const AttentionCall& x, const QueryTile<C>& t, C* top, C* sum) {
  for (i64 c = 0; c < t.width; ++c) top[c] = static_cast<C>(-__builtin_inf()), sum[c] = 0;
  if (!x.sink) return;
  const ScoreUnit<C> unit(x);
  with_storage<C>(x.type, [&]<class S>(const S*) {  // the sink is a first key with value 0
    for (i64 c = 0; c < t.count; ++c) {
      const i64 h = t.batch_head[c] - t.b * x.H;
      top[c] = unit.of(static_cast<C>(static_cast<const S*>(x.sink)[h]));
      sum[c] = top[c] > static_cast<C>(-__builtin_inf()) ? 1 : 0;
    }
  });
}

// ---- dropout ----

// keep[j][column] = 0 with probability p, otherwise 1/(1 - p). Key key0 need not be a multiple of four.
template <class C>
void dropout_factors(const AttentionCall& x, const QueryTile<C>& t, i64 key0, i64 keys, C* keep) {
  constexpr int W = lanes<U32>;
  const std::uint32_t bound = x.dropout_bound;
  const std::uint64_t key =
      node_key(static_cast<std::uint64_t>(x.rng[0]), static_cast<std::uint64_t>(x.rng[x.rng_stride]),
               static_cast<std::uint32_t>(x.stream));
  const C kept = static_cast<C>(1 / (1 - x.dropout));
  for (i64 c = 0; c < t.width; c += W) {
    const i64 columns = t.width - c < W ? t.width - c : W;
    std::int32_t query[W] = {}, head[W] = {};
    for (i64 l = 0; l < columns; ++l) query[l] = t.query[c + l], head[l] = t.batch_head[c + l];
    for (i64 four = key0 / 4; four * 4 < key0 + keys; ++four) {
      U32 words[4] = {(U32)load(query), U32{} + static_cast<std::uint32_t>(four), (U32)load(head), U32{}};
      philox_lanes(words, key);
      for (int w = 0; w < 4; ++w) {
        const i64 j = four * 4 + w - key0;
        if (j < 0 || j >= keys) continue;
        C* to = keep + j * t.width + c;
        for (i64 l = 0; l < columns; ++l) to[l] = words[w][l] >= bound ? kept : C{0};
      }
    }
  }
}

}  // namespace tg::cpu::TG_ISA
