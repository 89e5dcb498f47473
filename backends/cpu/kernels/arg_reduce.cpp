// argmax and argmin: the index of the largest or smallest of the reduced elements. Among equal elements, the
// first in row-major order is returned. A NaN counts as the extreme.
#include "backends/cpu/kernels/axes.h"
#include "backends/cpu/kernels/kernels.h"

namespace tg::cpu::TG_ISA {

namespace {

constexpr i64 block = piece_size(1024, 64);        // elements searched at a time
constexpr i64 shared_from = piece_size(8192, 64);  // elements that justify a separate part

template <class C, bool least>
TG_INLINE bool beats(C a, C b) {  // NaN beats every number
  return (least ? a < b : a > b) || (a != a && b == b);
}

// Returns the extreme of n values, or NaN if any of them is NaN.
template <class C, bool least>
C extreme(const C* p, i64 n) {
  using V = vector_of<C>;
  const auto better = [](auto a, auto b) { return select((b != b) | (least ? b < a : b > a), b, a); };
  C best = p[0];
  i64 i = 0;
  if (n >= lanes<V>) {
    V v = load(p);
    for (i = lanes<V>; i + lanes<V> <= n; i += lanes<V>) v = better(v, load(p + i));
    best = fold_lanes(v, better);
  }
  for (; i < n; ++i) best = better(best, p[i]);
  return best;
}

template <class C, bool least>
void run_as(Worker& w, const Call& call) {
  const Layout &x = call.in[0].layout, &y = call.out[0].layout;
  auto [kept, reduced] = ReducedAxes(x, y, call.attrs->as<ReduceAttrs>());
  reduced.merge();
  const AxisList runs = reduced.outer();
  const Axis along = reduced.rank > 0 ? reduced.inner() : Axis{1, 1, 0};
  const i64 size = static_cast<i64>(size_of(call.in[0].dtype)), run_count = runs.numel();
  const LoadFn to_block = block_load(call.in[0].dtype, dtype_of<C>);
  C* buffer = reinterpret_cast<C*>(w.scratch);  // [block]
  const bool direct = call.in[0].dtype == dtype_of<C> && along.in == 1;
  const i64 length = run_count * along.size, some = length >= shared_from ? 1 : shared_from / length;
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
          const C here = extreme<C, least>(values, n);
          if (place >= 0 && !beats<C, least>(here, best)) continue;
          i64 k = 0;
          while (values[k] != here && here == here) ++k;
          while (here != here && values[k] == values[k]) ++k;
          best = here, place = r * along.size + i + k;
        }
      reinterpret_cast<i64*>(call.out[0].data)[out.out] = place;
    }
  });
}

template <bool least>
void run(Worker& w, const Call& call) {
  with_compute_type(call.in[0].dtype, [&]<class C>(C) { run_as<C, least>(w, call); });
}

Scratch scratch(const Call&, int) {
  return {block * 8, 0};
}

}  // namespace

extern const Kernel argmax_kernel{&run<false>, &scratch};
extern const Kernel argmin_kernel{&run<true>, &scratch};

}  // namespace tg::cpu::TG_ISA
