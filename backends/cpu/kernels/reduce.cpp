// Reductions over axes: y[o] = f(x[o, 0], x[o, 1], …) for sum, mean, sum of squares, product, maximum and
// minimum. If the innermost axis in memory is reduced, the kernel iterates along rows. Otherwise it iterates
// down columns. In both cases, long reductions are split into pieces, and the results of the pieces are
// combined in order. The pieces depend only on the shape, so results are bitwise identical for any number of
// threads. Sums are first computed in short blocks. The rounding error therefore grows with the number of
// blocks, not with the number of elements.
//
// Fused elementwise ops may compute x row by row (core/compile/fused_reductions.h). The call then has the
// plan of these ops, and the kernel reduces the blocks that they leave in the L1 cache.
#include "backends/cpu/kernels/axes.h"
#include "backends/cpu/kernels/chain.h"
#include "backends/cpu/kernels/simd_math.h"
#include "core/compile/fused_reductions.h"

namespace tg::cpu::TG_ISA {

namespace {

// A reduction: the function of an element, and the combination of two results, for scalars and vectors.
struct Sum {
  using Combine = Sum;  // combines results, without `lift`
  template <class C>
  static constexpr C identity() {
    return 0;
  }
  template <class V>
  static TG_INLINE V lift(V x) {
    return x;
  }
  template <class V>
  static TG_INLINE V combine(V a, V b) {
    return a + b;
  }
};
struct SumSquares : Sum {
  template <class V>
  static TG_INLINE V lift(V x) {
    return x * x;
  }
};
struct Prod : Sum {
  using Combine = Prod;
  template <class C>
  static constexpr C identity() {
    return 1;
  }
  template <class V>
  static TG_INLINE V combine(V a, V b) {
    return a * b;
  }
};
template <bool least>
struct Extreme : Sum {
  using Combine = Extreme;
  template <class C>
  static constexpr C identity() {
    if constexpr (std::is_same_v<C, i64>)
      return least ? INT64_MAX : INT64_MIN;
    else
      return static_cast<C>(least ? __builtin_inf() : -__builtin_inf());
  }
  template <class V>
  static TG_INLINE V combine(V a, V b) {  // NaN in either gives NaN
    return select((b != b) | (least ? b < a : b > a), b, a);
  }
};

constexpr i64 block = piece_size(1024, 64);        // elements of a row that are reduced separately
constexpr i64 column_block = piece_size(512, 64);  // columns that are reduced together
constexpr i64 row_block = piece_size(256, 8);  // rows that are summed before their sum is added to the total
constexpr i64 piece = piece_size(32768, 256);  // elements that justify a separate part
constexpr i64 most_parts = 256;

// The loops of a reduction and its division into parts. Both depend only on shapes and strides.
struct Plan : ReducedAxes {
  i64 outs, count;  // elements of y; elements of x for each of them
  bool columns;
  i64 width, outer;  // columns: size of the innermost kept axis, product of the others
  i64 units;         // rows: equal to outs; columns: number of column blocks
  i64 splits;        // pieces of each unit's reduction

  explicit Plan(const Call& call) : Plan(call, call.plan ? &call.attrs->as<FusedReduction>() : nullptr) {}
  Plan(const Call& call, const FusedReduction* chain)
      : ReducedAxes(chain ? chain->read : call.in[0].layout, call.out.back().layout,
                    chain ? chain->reduce : call.attrs->as<ReduceAttrs>()),
        outs(call.out.back().layout.numel()),
        count(reduced.numel()) {
    kept.sort(), kept.merge();
    reduced.sort(), reduced.merge();
    columns = !chain && kept.rank > 0 && (reduced.rank == 0 || kept.inner().in < reduced.inner().in);
    width = columns ? kept.inner().size : 1;
    outer = width > 0 ? outs / width : 0;
    units = columns ? outer * ((width + column_block - 1) / column_block) : outs;
    const i64 elements = count * (width < column_block ? width : column_block);
    const i64 most = units > 0 && units < most_parts ? most_parts / units : 1;
    splits = (elements + piece - 1) / piece;
    splits = splits < 1 ? 1 : splits > most ? most : splits;
    if (splits > count && count > 0) splits = count;
  }
};

// The arithmetic of a reduction on blocks of values. Calls use function pointers, so the iteration code is
// compiled once per type and not once per reduction.
template <class C>
struct Blocks {
  using V = vector_of<C>;
  C identity;
  V (*add_block)(V total, const C* p, i64 n);               // adds n ≤ block values
  C (*across)(V);                                           // combines a vector of partial results
  C (*reduce_block)(const C* p, i64 n);                     // combines n ≤ block values
  void (*four_rows)(C* to, const C* const from[4], i64 n);  // to[c] = f(to[c], from[0][c], …, from[3][c])
  void (*one_row)(C* to, const C* from, i64 n);             // to[c] = f(to[c], from[c])
};

template <class R, class C>
struct BlocksOf {
  using V = vector_of<C>;
  static constexpr int W = lanes<V>;

  static V add_block(V total, const C* p, i64 n) {
    V a[4];
    for (V& v : a) v = splat<V>(R::template identity<C>());
    i64 i = 0;
    for (; i + 4 * W <= n; i += 4 * W)
      for (int k = 0; k < 4; ++k) a[k] = R::combine(a[k], R::lift(TG_ISA::load(p + i + k * W)));
    for (; i + W <= n; i += W) a[0] = R::combine(a[0], R::lift(TG_ISA::load(p + i)));
    if (i < n) {
      C tail[W];
      for (int k = 0; k < W; ++k) tail[k] = i + k < n ? R::lift(p[i + k]) : R::template identity<C>();
      a[1] = R::combine(a[1], TG_ISA::load(tail));
    }
    return R::combine(total, R::combine(R::combine(a[0], a[1]), R::combine(a[2], a[3])));
  }

  static C across(V v) {
    return fold_lanes(v, [](auto a, auto b) { return R::combine(a, b); });
  }

  static C reduce_block(const C* p, i64 n) {
    return across(add_block(splat<V>(R::template identity<C>()), p, n));
  }

  static void four_rows(C* to, const C* const from[4], i64 n) {
    i64 c = 0;
    for (; c + W <= n; c += W) {
      const V ab = R::combine(R::lift(TG_ISA::load(from[0] + c)), R::lift(TG_ISA::load(from[1] + c)));
      const V cd = R::combine(R::lift(TG_ISA::load(from[2] + c)), R::lift(TG_ISA::load(from[3] + c)));
      store(to + c, R::combine(TG_ISA::load(to + c), R::combine(ab, cd)));
    }
    for (; c < n; ++c)
      to[c] = R::combine(to[c], R::combine(R::combine(R::lift(from[0][c]), R::lift(from[1][c])),
                                           R::combine(R::lift(from[2][c]), R::lift(from[3][c]))));
  }
  static void one_row(C* to, const C* from, i64 n) {
    i64 c = 0;
    for (; c + W <= n; c += W)
      store(to + c, R::combine(TG_ISA::load(to + c), R::lift(TG_ISA::load(from + c))));
    for (; c < n; ++c) to[c] = R::combine(to[c], R::lift(from[c]));
  }
};

template <class R, class C>
constexpr Blocks<C> blocks_of{R::template identity<C>(), BlocksOf<R, C>::add_block,
                              BlocksOf<R, C>::across,    BlocksOf<R, C>::reduce_block,
                              BlocksOf<R, C>::four_rows, BlocksOf<R, C>::one_row};

// The range of computed elements in a block, and the limit up to which elements may be computed.
template <class C>
struct Made {
  i64 begin, end, limit;
  const C* values;
};

template <class C>
struct Reduction {
  using V = vector_of<C>;

  const Plan& plan;
  const Blocks<C>&elements, &results;  // they differ if elements are transformed first
  const std::byte* x;
  std::byte* y;
  i64 x_size, y_size;  // bytes of an element
  bool same_type;      // x is stored or computed in the compute type
  LoadFn load_block;
  StoreFn store_block, convert;
  double divisor;
  const Chain* chain;  // computes x; null if it is in memory

  Reduction(const Plan& p, const Blocks<C>& of_elements, const Blocks<C>& of_results, const Call& call,
            const Chain* makes_x, double by)
      : plan(p),
        elements(of_elements),
        results(of_results),
        y(call.out.back().data),
        y_size(static_cast<i64>(size_of(call.out.back().dtype))),
        divisor(by),
        chain(makes_x) {
    const FusedReduction* made = chain ? &call.attrs->as<FusedReduction>() : nullptr;
    const DType dtype = made ? made->dtype : call.in[0].dtype, compute = compute_type(dtype);
    // If the elements are stored in a lower-precision dtype, the reduction reads the stored values.
    const bool stored =
        made && chain->p.reduced < chain->p.stored && chain->p.output[chain->p.reduced].converts;
    x = stored ? call.out[static_cast<std::size_t>(chain->p.reduced)].data : made ? nullptr : call.in[0].data;
    x_size = static_cast<i64>(size_of(dtype));
    same_type = compute == (made ? made->chain.compute : dtype);
    load_block = TG_ISA::block_load(dtype, compute);
    store_block = TG_ISA::block_store(compute, call.out.back().dtype);
    convert = made ? TG_ISA::block_store(made->chain.compute, compute) : nullptr;
  }

  // Returns n elements at an offset as values of the compute type, in place or in `buffer`.
  const C* values(i64 offset, i64 stride, i64 n, C* buffer, Made<C>& made) const {
    if (chain) return made_values(offset, n, buffer, made);
    const std::byte* from = x + offset * x_size;
    if (same_type && stride == 1) return reinterpret_cast<const C*>(from);
    load_block(buffer, from, stride, n);
    return buffer;
  }

  // Computes n elements at an offset by the fused ops, and returns them. Each element is computed once. For a
  // long row, a call computes n elements. For a short row, it computes the whole row and as many of the
  // following rows as fit in a block.
  const C* made_values(i64 offset, i64 n, C* buffer, Made<C>& made) const {
    if (offset + n > made.end) {
      const i64 rows = plan.count <= block ? block / plan.count * plan.count : n, left = made.limit - offset;
      const i64 length = rows < left ? rows : left;
      const std::byte* from = chain->reduced_stretch(offset, length);
      if (x)
        load_block(buffer, x + offset * x_size, 1, length);
      else if (!same_type)
        convert(buffer, from, 1, length);
      made = {offset, offset + length, made.limit,
              !x && same_type ? reinterpret_cast<const C*>(from) : buffer};
    }
    return made.values + (offset - made.begin);
  }

  C finished(C v) const {
    if constexpr (std::is_floating_point_v<C>)
      if (divisor != 1) return static_cast<C>(v / divisor);
    return v;
  }

  void put(i64 offset, C v) const {
    v = finished(v);
    store_block(y + offset * y_size, &v, 1, 1);
  }

  // Reduces elements begin … end - 1 of the row that starts at offset `base`.
  C reduce_row(i64 base, i64 begin, i64 end, C* buffer, Made<C>& made) const {
    if (begin == end) return elements.identity;
    const i64 length = plan.reduced.rank > 0 ? plan.reduced.inner().size : 1;
    const i64 stride = plan.reduced.rank > 0 ? plan.reduced.inner().in : 0;
    if (plan.reduced.rank <= 1 && end - begin <= block)
      return elements.reduce_block(values(base + begin * stride, stride, end - begin, buffer, made),
                                   end - begin);
    V total = splat<V>(elements.identity);
    const AxisList runs = plan.reduced.outer();
    Counter run(runs, begin / length);
    for (i64 at = begin % length, left = end - begin; left > 0; at = 0, run.next()) {
      const i64 n = length - at < left ? length - at : left;
      for (i64 i = 0; i < n; i += block) {
        const i64 m = n - i < block ? n - i : block;
        total =
            elements.add_block(total, values(base + run.in + (at + i) * stride, stride, m, buffer, made), m);
      }
      left -= n;
    }
    return elements.across(total);
  }

  void rows(Worker& w) const {
    C* buffer = reinterpret_cast<C*>(w.scratch);
    C* partial = reinterpret_cast<C*>(w.shared);  // [outs, splits]
    if (plan.splits == 1) {
      const i64 each = count_or_one() >= piece ? 1 : piece / count_or_one();
      w.each((plan.outs + each - 1) / each, [&](i64 part) {
        const i64 first = part * each, last = first + each < plan.outs ? first + each : plan.outs;
        Counter out(plan.kept, first);
        Made<C> made{0, 0, last * plan.count, nullptr};
        for (i64 o = first; o < last; ++o, out.next()) {
          put(out.out, reduce_row(out.in, 0, plan.count, buffer, made));
        }
      });
      return;
    }
    w.each(plan.outs * plan.splits, [&](i64 part) {
      const i64 s = part % plan.splits;
      const Counter out(plan.kept, part / plan.splits);
      const i64 begin = plan.count * s / plan.splits, end = plan.count * (s + 1) / plan.splits;
      Made<C> made{0, 0, out.in + end, nullptr};
      partial[part] = reduce_row(out.in, begin, end, buffer, made);
    });
    if (!w.barrier()) return;
    w.each(1, [&](i64) {
      Counter out(plan.kept, 0);
      for (i64 o = 0; o < plan.outs; ++o, out.next())
        put(out.out, results.reduce_block(partial + o * plan.splits, plan.splits));
    });
  }

  i64 count_or_one() const { return plan.count > 0 ? plan.count : 1; }

  // Reduces rows begin … end - 1 of n columns that start at offset `base` into to[n].
  void reduce_columns(C* to, i64 base, i64 begin, i64 end, i64 n, C* buffer) const {
    for (i64 c = 0; c < n; ++c) to[c] = elements.identity;
    if (begin == end) return;
    C *of_block = buffer, *rows = buffer + column_block;
    const i64 stride = plan.kept.inner().in;
    Counter row(plan.reduced, begin);
    Made<C> none{};
    for (i64 first = begin; first < end; first += row_block) {
      const i64 last = first + row_block < end ? first + row_block : end;
      C* sum = end - begin > row_block ? of_block : to;
      if (sum != to)
        for (i64 c = 0; c < n; ++c) sum[c] = elements.identity;
      i64 r = first;
      for (; r + 4 <= last; r += 4) {
        const C* from[4];
        for (int k = 0; k < 4; ++k, row.next())
          from[k] = values(base + row.in, stride, n, rows + k * column_block, none);
        elements.four_rows(sum, from, n);
      }
      for (; r < last; ++r, row.next())
        elements.one_row(sum, values(base + row.in, stride, n, rows, none), n);
      if (sum != to) results.one_row(to, sum, n);
    }
  }

  void columns(Worker& w) const {
    C* total = reinterpret_cast<C*>(w.scratch);  // [column_block], then five more buffers of this size
    C* buffer = total + column_block;
    C* partial = reinterpret_cast<C*>(w.shared);  // [units, splits, column_block]
    const AxisList outer = plan.kept.outer();
    const i64 blocks = plan.outer > 0 ? plan.units / plan.outer : 0;
    const Axis inner = plan.kept.inner();
    const auto size = [&](i64 unit) {
      const i64 first = unit % blocks * column_block;
      return plan.width - first < column_block ? plan.width - first : column_block;
    };
    const auto finish = [&](i64 unit, C* from) {
      const Counter at(outer, unit / blocks);
      const i64 n = size(unit);
      for (i64 c = 0; c < n; ++c) from[c] = finished(from[c]);
      store_block(y + (at.out + unit % blocks * column_block * inner.out) * y_size, from, inner.out, n);
    };
    w.each(plan.units * plan.splits, [&](i64 part) {
      const i64 unit = part / plan.splits, s = part % plan.splits;
      const Counter at(outer, unit / blocks);
      C* to = plan.splits == 1 ? total : partial + part * column_block;
      reduce_columns(to, at.in + unit % blocks * column_block * inner.in, plan.count * s / plan.splits,
                     plan.count * (s + 1) / plan.splits, size(unit), buffer);
      if (plan.splits == 1) finish(unit, to);
    });
    if (plan.splits == 1) return;
    if (!w.barrier()) return;
    w.each(plan.units, [&](i64 unit) {
      C* first = partial + unit * plan.splits * column_block;
      for (i64 s = 1; s < plan.splits; ++s) results.one_row(first, first + s * column_block, size(unit));
      finish(unit, first);
    });
  }
};

constexpr std::size_t own_scratch = 6 * column_block * 8;  // bytes

template <class R, bool mean = false>
void run(Worker& w, const Call& call) {
  const Plan plan(call);
  if (plan.outs == 0) return;
  const double divisor = mean ? static_cast<double>(plan.count) : 1;
  const auto run_with = [&](DType dtype, const Chain* chain) {
    with_compute_type(dtype, [&]<class C>(C) {
      const Reduction<C> r(plan, blocks_of<R, C>, blocks_of<typename R::Combine, C>, call, chain, divisor);
      plan.columns ? r.columns(w) : r.rows(w);
    });
  };
  if (!call.plan) return run_with(call.in[0].dtype, nullptr);
  const auto& p = *static_cast<const PointwisePlan*>(call.plan);
  const Chain chain{p, call, w.scratch + own_scratch};
  const bool streams = chain.streams();  // run_with may end the lifetime of `chain`
  run_with(call.attrs->as<FusedReduction>().dtype, &chain);
  if (streams) stream_end();
}

Scratch scratch(const Call& call, int) {
  const Plan plan(call);
  constexpr std::size_t size = 8;
  const i64 partials = plan.splits == 1 ? 0 : plan.units * plan.splits * (plan.columns ? column_block : 1);
  const auto* p = static_cast<const PointwisePlan*>(call.plan);
  const std::size_t of_chain = p ? static_cast<std::size_t>(p->slots) * PointwisePlan::block *
                                       static_cast<std::size_t>(p->compute_size)
                                 : 0;
  return {own_scratch + of_chain, static_cast<std::size_t>(partials) * size};
}

}  // namespace

extern const Kernel sum_kernel{&run<Sum>, &scratch};
extern const Kernel mean_kernel{&run<Sum, true>, &scratch};
extern const Kernel sum_squares_kernel{&run<SumSquares>, &scratch};
extern const Kernel prod_kernel{&run<Prod>, &scratch};
extern const Kernel max_kernel{&run<Extreme<false>>, &scratch};
extern const Kernel min_kernel{&run<Extreme<true>>, &scratch};

}  // namespace tg::cpu::TG_ISA
