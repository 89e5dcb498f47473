// adamw (formula: ops/adamw.cpp) in one pass over p, g, m and v.
#include "ops/adamw.h"

#include <cmath>

#include "backends/cpu/kernels/rows.h"

namespace tg::cpu::TG_ISA {

namespace {

double scalar(const Arg& a) {
  double v;
  block_load(a.dtype, DType::f64)(&v, a.data, 0, 1);
  return v;
}

template <class C>
void run_as(Worker& w, const Call& call) {
  using V = vector_t<C>;
  constexpr i64 block = Flat<C>::block;
  const auto& a = call.attrs->as<AdamWAttrs>();
  const double rate = scalar(call.in[4]), t = scalar(call.in[5]);
  const double factor = scalar(call.in[6]);
  const V scale = splat<V>(factor), keep = splat<V>(1 - rate * a.weight_decay);
  const V pace = splat<V>(rate / (1 - ::pow(a.beta1, t)));
  const V correction = splat<V>(1 / ::sqrt(1 - ::pow(a.beta2, t))), eps = splat<V>(a.eps);
  const V b1 = splat<V>(a.beta1), b2 = splat<V>(a.beta2);
  const V c1 = splat<V>(1 - a.beta1), c2 = splat<V>(1 - a.beta2);
  const Flat<C> p(call.in[0]), g(call.in[1]), m(call.in[2]), v(call.in[3]);
  const Flat<C> new_p(call.out[0]), new_m(call.out[1]), new_v(call.out[2]);
  C* buffer = reinterpret_cast<C*>(w.scratch);  // [7, block]
  each_block(w, p.count, [&](i64 start, i64 n) {
    const C *pi = p.read(start, n, buffer), *gi = g.read(start, n, buffer + block);
    const C *mi = m.read(start, n, buffer + 2 * block), *vi = v.read(start, n, buffer + 3 * block);
    C *po = new_p.target(start, buffer + 4 * block), *mo = new_m.target(start, buffer + 5 * block),
      *vo = new_v.target(start, buffer + 6 * block);
    for_vectors<C>(n, [&](i64 i, int k) {
      if (factor == 0) {
        store_n(mo + i, load_n(mi + i, k), k);
        store_n(vo + i, load_n(vi + i, k), k);
        store_n(po + i, load_n(pi + i, k), k);
        return;
      }
      const V gs = load_n(gi + i, k) * scale;
      const V m1 = b1 * load_n(mi + i, k) + c1 * gs, v1 = b2 * load_n(vi + i, k) + c2 * gs * gs;
      store_n(mo + i, m1, k);
      store_n(vo + i, v1, k);
      store_n(po + i, keep * load_n(pi + i, k) - pace * m1 / (sqrt(v1) * correction + eps), k);
    });
    new_p.finish(start, n, po), new_m.finish(start, n, mo), new_v.finish(start, n, vo);
  });
}

void run(Worker& w, const Call& call) {
  compute_type(call.in[0].dtype) == DType::f64 ? run_as<double>(w, call) : run_as<float>(w, call);
}

Scratch scratch(const Call&, int) {
  return {7 * Flat<double>::block * sizeof(double), 0};
}

}  // namespace

const Kernel adamw_kernel{&run, &scratch};

}  // namespace tg::cpu::TG_ISA
