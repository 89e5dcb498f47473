// argmax and argmin: the first place of the extreme among the reduced elements, counted row-major; a NaN
// counts as the extreme.
#include "backends/cpu/kernels/axes.h"
#include "backends/cpu/kernels/kernels.h"
#include "ops/reduce.h"

namespace tg::cpu::TG_ISA {

namespace {

constexpr i64 block = 1024;  // elements looked at together

template <class C, bool least>
TG_INLINE bool beats(C a, C b) {  // NaN beats every number
  return (least ? a < b : a > b) || (a != a && b == b);
}

// Whether any of n values beats `best`.
template <class C, bool least>
bool any_beats(const C* p, i64 n, C best) {
  using V = typename VectorFor<C>::type;
  const V b = splat<V>(best);
  auto found = b != b;
  found = found != found;  // all false
  i64 i = 0;
  for (; i + lanes<V> <= n; i += lanes<V>) {
    const V v = load(p + i);
    found = found | (least ? v < b : v > b) | ((v != v) & (b == b));
  }
  bool any = false;
  for (int k = 0; k < lanes<V>; ++k) any |= found[k] != 0;
  for (; i < n; ++i) any |= beats<C, least>(p[i], best);
  return any;
}

template <class C, bool least>
void run_as(Worker& w, const Call& call) {
  const Layout &x = call.in[0].layout, &y = call.out[0].layout;
  const auto& a = call.attrs->as<ReduceAttrs>();
  AxisList kept, reduced;
  for (int i = 0, o = 0; i < x.rank(); ++i) {
    const bool is_reduced = a.axes.contains(i);
    if (is_reduced)
      reduced.push({x.shape[i], x.strides[i], 0});
    else
      kept.push({x.shape[i], x.strides[i], y.strides[o]});
    o += !is_reduced || a.keepdim;
  }
  reduced.merge();
  const AxisList runs = reduced.outer();
  const Axis along = reduced.rank > 0 ? reduced.inner() : Axis{1, 1, 0};
  const i64 size = static_cast<i64>(size_of(call.in[0].dtype)), run_count = runs.numel();
  const LoadFn to_block = block_load(call.in[0].dtype, compute_type(call.in[0].dtype));
  C* buffer = reinterpret_cast<C*>(w.scratch);  // [block]
  const bool direct = call.in[0].dtype == dtype_of<C> && along.in == 1;
  const i64 length = run_count * along.size, some = length >= 8192 ? 1 : 8192 / length;
  w.each((y.numel() + some - 1) / some, [&](i64 part) {
    const i64 first = part * some, last = first + some < y.numel() ? first + some : y.numel();
    Counter out(kept, first);
    for (i64 o = first; o < last; ++o, out.next()) {
      C best{};
      i64 place = -1;
      Counter run(runs, 0);
      for (i64 r = 0; r < run_count; ++r, run.next())
        for (i64 i = 0; i < along.size; i += block) {
          const i64 n = along.size - i < block ? along.size - i : block;
          const std::byte* from = call.in[0].data + (out.in + run.in + i * along.in) * size;
          const C* values = reinterpret_cast<const C*>(from);
          if (!direct) to_block(buffer, from, along.in, n), values = buffer;
          if (place >= 0 && !any_beats<C, least>(values, n, best)) continue;
          for (i64 k = 0; k < n; ++k)
            if (place < 0 || beats<C, least>(values[k], best))
              best = values[k], place = r * along.size + i + k;
        }
      reinterpret_cast<i64*>(call.out[0].data)[out.out] = place;
    }
  });
}

template <bool least>
void run(Worker& w, const Call& call) {
  switch (compute_type(call.in[0].dtype)) {
    case DType::f64:
      return run_as<double, least>(w, call);
    case DType::f32:
      return run_as<float, least>(w, call);
    default:
      return run_as<i64, least>(w, call);
  }
}

Scratch scratch(const Call&, int) {
  return {block * 8, 0};
}

}  // namespace

const Kernel argmax_kernel{&run<false>, &scratch};
const Kernel argmin_kernel{&run<true>, &scratch};

}  // namespace tg::cpu::TG_ISA
