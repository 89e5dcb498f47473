// adamw, with the formula in ops/adamw.cpp. One pass over p, g, m and v of all parameters computes
// everything, including the low-precision copies.
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

// Factors that are the same for all parameters.
struct Factors {
  double rate, scale, pace, correction, eps, b1, b2;

  Factors(const Arg* scalars, const AdamWAttrs& a)
      : rate(scalar(scalars[0])), scale(scalar(scalars[2])), eps(a.eps), b1(a.beta1), b2(a.beta2) {
    const double t = scalar(scalars[1]);
    pace = rate / (1 - ::pow(a.beta1, t));
    correction = 1 / ::sqrt(1 - ::pow(a.beta2, t));
  }
};

// Updates elements begin … end - 1 of one parameter. Inputs are p, g, m and v. Outputs are p', m', v' and, if
// requested, the copy of p'.
template <class C>
void update(const Factors& f, double decay, const Arg* in, const Arg* out, i64 begin, i64 end, C* buffer) {
  using V = vector_t<C>;
  constexpr i64 block = Flat<C>::block;
  const V scale = splat<V>(f.scale), keep = splat<V>(1 - f.rate * decay), pace = splat<V>(f.pace);
  const V correction = splat<V>(f.correction), eps = splat<V>(f.eps), b1 = splat<V>(f.b1),
          b2 = splat<V>(f.b2), c1 = splat<V>(1 - f.b1), c2 = splat<V>(1 - f.b2);
  const Flat<C> p(in[0]), g(in[1]), m(in[2]), v(in[3]), new_p(out[0]), new_m(out[1]), new_v(out[2]),
      copy(out[3]);
  const bool has_copy = out[3].layout.numel() > 0;
  for (i64 start = begin; start < end; start += block) {
    const i64 n = end - start < block ? end - start : block;
    const C *pi = p.read(start, n, buffer), *gi = g.read(start, n, buffer + block);
    const C *mi = m.read(start, n, buffer + 2 * block), *vi = v.read(start, n, buffer + 3 * block);
    C *po = new_p.target(start, buffer + 4 * block), *mo = new_m.target(start, buffer + 5 * block),
      *vo = new_v.target(start, buffer + 6 * block);
    for_vectors<C>(n, [&](i64 i, int k) {
      if (f.scale == 0) {
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
    if (has_copy) copy.finish(start, n, po);
    new_p.finish(start, n, po), new_m.finish(start, n, mo), new_v.finish(start, n, vo);
  }
}

void run(Worker& w, const Call& call) {
  const auto& a = call.attrs->as<AdamWAttrs>();
  const auto tensors = static_cast<i64>(call.out.size()) / adamw_outs;
  const Arg *in = call.in.data(), *out = call.out.data();
  const double* decay = a.weight_decay.data();
  const Factors f(in + tensors * adamw_ins, a);
  const auto count = [&](i64 i) { return in[i * adamw_ins].layout.numel(); };
  each_chunk(w, tensors, count, [&](i64 i, i64, i64 begin, i64 end) {
    const Arg *own = in + i * adamw_ins, *result = out + i * adamw_outs;
    if (own->dtype == DType::f64)
      update(f, decay[i], own, result, begin, end, reinterpret_cast<double*>(w.scratch));
    else
      update(f, decay[i], own, result, begin, end, reinterpret_cast<float*>(w.scratch));
  });
}

Scratch scratch(const Call&, int) {
  return {7 * Flat<double>::block * sizeof(double), 0};
}

}  // namespace

extern const Kernel adamw_kernel{&run, &scratch};

}  // namespace tg::cpu::TG_ISA
