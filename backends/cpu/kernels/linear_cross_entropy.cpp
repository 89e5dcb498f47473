// linear_cross_entropy (formulas: ops/linear_cross_entropy.cpp). The logits x·w are stored in the memory of
// G. Then each row of logits is overwritten by the row of G while it is in the cache. This kernel uses c = ξ.
#include "ops/cross_entropy.h"

#include "backends/cpu/kernels/online.h"

namespace tg::cpu::TG_ISA {

extern const Kernel matmul_kernel;

namespace {

// The GEMM that computes the logits.
Call product_of(const Call& call) {
  return {call.in.first(2), call.out.subspan(2, 1), nullptr, nullptr, call.batch_invariant};
}

template <class C>
C row_factor(C log_sum, C z_loss) {
  const C h = 1 + 2 * z_loss * log_sum, least = static_cast<C>(least_row_factor);
  return h < least && h > -least ? least : h;
}

template <class C>
void rows(Worker& w, const Call& call) {
  using V = vector_t<C>;
  const auto& a = call.attrs->as<LinearCrossEntropyAttrs>();
  const AxisRows<C> logits(call.out[2], 1), G(call.out[2], 1, call.out[2].data);
  const AxisRows<i64> targets(call.in[2], -1);
  C* loss = reinterpret_cast<C*>(call.out[0].data);    // [n]
  C* factor = reinterpret_cast<C*>(call.out[1].data);  // [n]
  const i64 n = logits.n;
  C* buffer = reinterpret_cast<C*>(w.scratch);  // [V]
  const C hit = static_cast<C>(1 - a.smoothing), z_loss = static_cast<C>(a.z_loss);
  each_row(w, logits.count, n, [&](i64 r) {
    C* out = G.target(r, buffer);
    const i64 t = targets.one(r);
    loss[r] = factor[r] = 0;
    if (t == a.ignore_index || !w.check_index(t, n, r)) {
      for (i64 i = 0; i < n; ++i) out[i] = 0;
    } else {
      const C* in = logits.read(r, buffer);
      Normalizer<C> all;
      all.take(in, n);
      const C rest = all.log_of_sum(), xi = all.max + rest, own = in[t];
      loss[r] = rest + (all.max - own) + (1 - hit) * own + z_loss * xi * xi;
      factor[r] = row_factor(xi, z_loss);
      const V c = splat<V>(all.max), log_pi = splat<V>(rest);
      for_vectors<C>(n, [&](i64 i, int k) { store_n(out + i, exp((load_n(in + i, k) - c) - log_pi), k); });
      out[t] -= hit / factor[r];
    }
    G.finish(r, out);
  });
  G.end();
}

void run(Worker& w, const Call& call) {
  matmul_kernel.run(w, product_of(call));
  if (!w.barrier()) return;
  run_float<rows<double>, rows<float>>(w, call);
}

Scratch scratch(const Call& call, int threads) {
  const Scratch product = matmul_kernel.scratch(product_of(call), threads);
  const std::size_t row = 8 * static_cast<std::size_t>(call.out[2].layout.shape[1]);
  return {product.per_thread > row ? product.per_thread : row, product.shared};
}

void choice(const Call& call, int threads, char* text, std::size_t size) {
  matmul_kernel.choice(product_of(call), threads, text, size);
}

}  // namespace

extern const Kernel linear_cross_entropy_kernel{&run, &scratch, &choice};

}  // namespace tg::cpu::TG_ISA
