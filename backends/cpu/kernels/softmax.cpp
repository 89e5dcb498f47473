// softmax, log_softmax and logsumexp along one axis, by the online normalizer [Ye, Online Softmax §3]. One
// pass over a row computes maximum and sum, and a second pass writes the result. This file also contains the
// gradients of softmax and log_softmax (formulas: ops/softmax.cpp).
#include "ops/index.h"

#include "backends/cpu/kernels/online.h"

namespace tg::cpu::TG_ISA {

namespace {

template <class C, bool log_of>
void forward(Worker& w, const Call& call) {
  using V = vector_t<C>;
  const int axis = static_cast<int>(call.attrs->as<SoftmaxAttrs>().axis);
  const AxisRows<C> x(call.in[0], axis), y(call.out[0], axis, call.in[0].data);
  const i64 n = x.n;
  C* buffer = reinterpret_cast<C*>(w.scratch);  // [2, n], then the maxima of chunks
  [[maybe_unused]] C* tops = buffer + 2 * n;
  each_row(w, x.count, n, [&](i64 r) {
    const C* in = x.read(r, buffer);
    C* out = y.target(r, buffer + n);
    Normalizer<C> all;
    if (log_of) {
      all.take(in, n);
      const V top = splat<V>(all.max), rest = log(splat<V>(all.sum));
      for_vectors<C>(n, [&](i64 i, int k) { store_n(out + i, load_n(in + i, k) - top - rest, k); });
    } else {
      all.take(in, n, out, tops);
      for (i64 first = 0; first < n; first += all.chunk) {
        const C rescale =
            tops[first / all.chunk] == all.max ? C{1} : exp_of(tops[first / all.chunk] - all.max);
        const V scale = splat<V>(rescale / all.sum);
        for_vectors<C>(n - first < all.chunk ? n - first : all.chunk, [&](i64 i, int k) {
          store_n(out + first + i, load_n(out + first + i, k) * scale, k);
        });
      }
    }
    y.finish(r, out);
  });
  y.end();
}

template <class C, bool log_of>
void backward(Worker& w, const Call& call) {
  using V = vector_t<C>;
  const int axis = static_cast<int>(call.attrs->as<SoftmaxAttrs>().axis);
  const AxisRows<C> y(call.in[0], axis), z(call.in[1], axis),
      z_x(call.out[0], axis, call.in[0].data, call.in[1].data);
  const i64 n = y.n;
  C* buffer = reinterpret_cast<C*>(w.scratch);  // [3, n]
  each_row(w, y.count, n, [&](i64 r) {
    const C *yr = y.read(r, buffer), *zr = z.read(r, buffer + n);
    C* out = z_x.target(r, buffer + 2 * n);
    const V total = splat<V>(sum_of<C>(n, [=](i64 i, int k) {
      const V zi = load_n(zr + i, k);
      return log_of ? zi : zi * load_n(yr + i, k);
    }));
    for_vectors<C>(n, [&](i64 i, int k) {
      const V yi = load_n(yr + i, k), zi = load_n(zr + i, k);
      store_n(out + i, log_of ? zi - exp(yi) * total : yi * (zi - total), k);
    });
    z_x.finish(r, out);
  });
  z_x.end();
}

template <class C>
void log_sums(Worker& w, const Call& call) {
  const int axis = static_cast<int>(call.attrs->as<SoftmaxAttrs>().axis);
  const AxisRows<C> x(call.in[0], axis), y(call.out[0], axis);
  C* buffer = reinterpret_cast<C*>(w.scratch);  // [n]
  each_row(w, x.count, x.n, [&](i64 r) {
    Normalizer<C> all;
    all.take(x.read(r, buffer), x.n);
    C value;
    C* out = y.target(r, &value);
    *out = all.log_sum();
    y.finish(r, out);
  });
}

Scratch scratch(const Call& call, int) {
  const i64 n = call.in[0].layout.shape[static_cast<int>(call.attrs->as<SoftmaxAttrs>().axis)];
  return {(3 * static_cast<std::size_t>(n) + 1) * size_of(compute_type(call.in[0].dtype)), 0};
}

}  // namespace

extern const Kernel softmax_kernel{&run_float<forward<double, false>, forward<float, false>>, &scratch};
extern const Kernel log_softmax_kernel{&run_float<forward<double, true>, forward<float, true>>, &scratch};
extern const Kernel softmax_backward_kernel{&run_float<backward<double, false>, backward<float, false>>,
                                            &scratch};
extern const Kernel log_softmax_backward_kernel{&run_float<backward<double, true>, backward<float, true>>,
                                                &scratch};
extern const Kernel logsumexp_kernel{&run_float<log_sums<double>, log_sums<float>>, &scratch};

}  // namespace tg::cpu::TG_ISA
