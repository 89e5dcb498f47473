// matmul: C = A·B, or A·B + D, for operands with any strides; broadcast axes have stride 0. matmul_in_units
// splits only k, because GEMMs with at least a unit of rows give bitwise identical rows.
#include "backends/cpu/kernels/gemm.h"
#include "backends/cpu/kernels/kernels.h"
#include "ops/matmul_in_units.h"

namespace tg::cpu::TG_ISA {

namespace {

// x [..., rows, columns] as an operand of the GEMM. The leading axes of the GEMM are `batch`.
Gemm::Matrix operand(const Arg& x, const Shape& out) {
  const Layout& l = x.layout;
  const int rank = l.rank(), extra = out.size() - rank;
  const auto stride = [&](int axis) {  // stride along an axis of the GEMM
    const int own = axis - extra;
    return own < 0 || (l.shape[own] == 1 && out[axis] != 1) ? 0 : l.strides[own];
  };
  Gemm::Matrix o;
  o.data = x.data;
  for (int i = 0; i + 2 < out.size(); ++i) o.batch_strides[i] = stride(i);
  o.row = stride(out.size() - 2);
  o.col = stride(out.size() - 1);
  return o;
}

Gemm gemm_of(const Call& c) {
  const Arg &a = c.in[0], &b = c.in[1];
  const Shape& out = c.out[0].layout.shape;
  const int rank = out.size();
  Gemm g;
  g.type = a.dtype;
  g.out_type = c.out[0].dtype;
  g.bf16 = bf16_unit();
  g.batch_invariant = c.batch_invariant;
  g.m = out[rank - 2];
  g.n = out[rank - 1];
  g.k = a.layout.shape[a.layout.rank() - 1];
  g.batch_rank = rank - 2;
  Shape with_inner = out;
  for (int i = 0; i < g.batch_rank; ++i) g.batch[i] = out[i];
  with_inner[rank - 1] = g.k;
  g.a = operand(a, with_inner);
  with_inner[rank - 1] = g.n;
  with_inner[rank - 2] = g.k;
  g.b = operand(b, with_inner);
  g.c = operand(c.out[0], out);
  if (c.in.size() == 3) g.d = operand(c.in[2], out);
  return g;
}

Scratch scratch(const Call& c, int threads) {
  return gemm_scratch(gemm_of(c), threads);
}

void run(Worker& w, const Call& c) {
  gemm(gemm_of(c), w);
}

void choice(const Call& c, int threads, char* text, std::size_t size) {
  gemm_choice(gemm_of(c), threads, text, size);
}

// Calls f(the GEMM of a unit) in order until f returns false. Each unit adds to the result of the previous
// one.
template <class F>
void each_unit(const Call& c, F&& f) {
  const auto& attrs = c.attrs->as<MatmulInUnitsAttrs>();
  const Gemm all = gemm_of(c);
  const std::int64_t units = attrs.along_k && all.k >= 2 * attrs.unit ? all.k / attrs.unit : 1;
  const auto at = [&](const Gemm::Matrix& x, std::int64_t step, std::int64_t k) {
    const std::int64_t bytes = k * step * static_cast<std::int64_t>(size_of(all.type));
    return x.data ? static_cast<std::byte*>(x.data) + bytes : nullptr;
  };
  for (std::int64_t i = 0; i < units; ++i) {
    const std::int64_t k = i * attrs.unit;
    Gemm g = all;
    g.k = i + 1 < units ? attrs.unit : all.k - k;
    g.a.data = at(all.a, all.a.col, k), g.b.data = at(all.b, all.b.row, k);
    if (i > 0) g.d = g.c;
    if (!f(g)) return;
  }
}

Scratch scratch_of_units(const Call& c, int threads) {
  Scratch most;
  each_unit(c, [&](const Gemm& g) {
    const Scratch s = gemm_scratch(g, threads);
    if (s.per_thread > most.per_thread) most.per_thread = s.per_thread;
    if (s.shared > most.shared) most.shared = s.shared;
    return true;
  });
  return most;
}

void run_units(Worker& w, const Call& c) {
  bool is_first = true;
  each_unit(c, [&](const Gemm& g) {
    if (!is_first && !w.barrier()) return false;
    is_first = false;
    gemm(g, w);
    return true;
  });
}

void choice_of_units(const Call& c, int threads, char* text, std::size_t size) {
  each_unit(c, [&](const Gemm& g) {
    gemm_choice(g, threads, text, size);
    return false;
  });
}

}  // namespace

extern const Kernel matmul_kernel{&run, &scratch, &choice};
extern const Kernel matmul_in_units_kernel{&run_units, &scratch_of_units, &choice_of_units};

}  // namespace tg::cpu::TG_ISA
