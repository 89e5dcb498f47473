// cross_entropy, forward and backward (formulas: ops/cross_entropy.cpp), one row of logits at a time.
#include "ops/cross_entropy.h"

#include "backends/cpu/kernels/online.h"

namespace tg::cpu::TG_ISA {

namespace {

template <class C>
void forward(Worker& w, const Call& call) {
  using V = vector_t<C>;
  const auto& a = call.attrs->as<CrossEntropyAttrs>();
  const AxisRows<C> x(call.in[0], call.in[0].layout.rank() - 1);
  const AxisRows<i64> targets(call.in[1], -1);
  C* loss = reinterpret_cast<C*>(call.out[0].data);     // [rows]
  C* top = reinterpret_cast<C*>(call.out[1].data);      // [rows], c
  C* log_sum = reinterpret_cast<C*>(call.out[2].data);  // [rows], log π
  C* buffer = reinterpret_cast<C*>(w.scratch);          // [n]
  const C hit = static_cast<C>(1 - a.smoothing);
  const C share = static_cast<C>(a.smoothing / static_cast<double>(x.n));
  each_row(w, x.count, x.n, [&](i64 r) {
    loss[r] = top[r] = log_sum[r] = 0;
    const i64 t = targets.one(r);
    if (t == a.ignore_index || !w.check_index(t, x.n, r)) return;
    const C* in = x.read(r, buffer);
    Normalizer<C> all;
    all.take(in, x.n);
    top[r] = all.max, log_sum[r] = all.log_of_sum();
    loss[r] = log_sum[r] + hit * (all.max - in[t]);
    if (share != 0) {
      const V c = splat<V>(all.max);
      loss[r] +=
          share * sum_of<C>(x.n, [=](i64 i, int k) { return first_n<C>(c - load_n(in + i, k), k, 0); });
    }
  });
}

template <class C>
void backward(Worker& w, const Call& call) {
  using V = vector_t<C>;
  const auto& a = call.attrs->as<CrossEntropyAttrs>();
  const int last = call.in[0].layout.rank() - 1;
  const AxisRows<C> x(call.in[0], last), z_x(call.out[0], last, call.in[0].data), top(call.in[2], -1),
      log_sum(call.in[3], -1), z(call.in[4], -1);
  const AxisRows<i64> targets(call.in[1], -1);
  const i64 n = x.n;
  C* buffer = reinterpret_cast<C*>(w.scratch);  // [2, n]
  const C hit = static_cast<C>(1 - a.smoothing);
  const C share = static_cast<C>(a.smoothing / static_cast<double>(n));
  each_row(w, x.count, n, [&](i64 r) {
    C* out = z_x.target(r, buffer + n);
    const i64 t = targets.one(r);
    if (t == a.ignore_index || !w.check_index(t, n, r)) {
      for (i64 i = 0; i < n; ++i) out[i] = 0;
    } else {
      const C* in = x.read(r, buffer);
      const C zr = z.one(r);
      const V scale = splat<V>(zr), c = splat<V>(top.one(r)), log_pi = splat<V>(log_sum.one(r)),
              less = splat<V>(share);
      for_vectors<C>(n, [&](i64 i, int k) {
        store_n(out + i, scale * (exp((load_n(in + i, k) - c) - log_pi) - less), k);
      });
      out[t] -= zr * hit;
    }
    z_x.finish(r, out);
  });
  z_x.end();
}

Scratch scratch(const Call& call, int) {
  return {2 * 8 * static_cast<std::size_t>(call.in[0].layout.shape.back()), 0};
}

}  // namespace

extern const Kernel cross_entropy_kernel{&run_float<forward<double>, forward<float>>, &scratch};
extern const Kernel cross_entropy_backward_kernel{&run_float<backward<double>, backward<float>>, &scratch};

}  // namespace tg::cpu::TG_ISA
