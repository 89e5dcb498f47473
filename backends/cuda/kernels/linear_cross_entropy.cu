// linear_cross_entropy (formulas: ops/linear_cross_entropy.cpp) for calls that head_loss.cu does not support.
// The logits x·w are stored in the memory of G. Each row of logits is then overwritten by the row of G, with
// c = ξ.
#include "backends/cuda/kernels/online.cuh"
#include "backends/cuda/kernels/target.cuh"
#include "ops/cross_entropy.h"
#include "ops/matmul_in_units.h"

namespace tg::cuda {

extern const Kernel matmul_kernel, matmul_in_units_kernel;

namespace {

struct LogitRows {
  RowLayout logits;
  Targets targets;
  void *loss, *factor;  // [rows], the compute type
  i64 n, rows;
  double hit, z_loss;  // 1 - ε and λ
};

template <class S, class Row>
__global__ void __launch_bounds__(most_threads)
    gradients_of_rows(const __grid_constant__ LogitRows a, Faults faults) {
  begin_early();
  using C = compute_t<S>;
  Team<!Row::held> team(false);
  const C hit = static_cast<C>(a.hit), z_loss = static_cast<C>(a.z_loss);
  const i64 step = i64{gridDim.x} * blockDim.y;
  for (i64 first = i64{blockIdx.x} * blockDim.y; first < a.rows; first += step) {
    const i64 r = first + team.index;
    const Row row = load_row<S, Row>(team, r, a.rows, a.n, a.logits);
    const i64 t = r < a.rows ? a.targets.at(r, a.n, faults, team.rank == 0) : -1;
    S* out = r < a.rows ? a.logits.at<S, Row::held>(r) : nullptr;
    const C own = t >= 0 && team.rank == 0 ? widen(out[t]) : C(0);  // read before the row is overwritten
    const Normalizer<C> all = normalizer_of(team, row);
    if (r >= a.rows) continue;
    const C top = all.max, rest = log(all.sum), xi = top + rest, factor = row_factor(xi, z_loss),
            less = hit / factor;
    if (t < 0)
      row.write(out, 1, [](C, auto) { return C(0); });
    else if constexpr (Row::held)
      row.write_packs(out, [&](C(&x)[Row::V], int p) {
        const int at = static_cast<int>(t) - p * Row::V;  // t's index in the pack
#pragma unroll
        for (int e = 0; e < Row::V; ++e) x[e] = exp_below((x[e] - top) - rest) - (e == at ? less : C(0));
      });
    else
      row.write(out, 1, [&](C x, i64 i) { return exp_below((x - top) - rest) - (i == t ? less : C(0)); });
    if (team.rank > 0) continue;
    static_cast<C*>(a.loss)[r] = t < 0 ? C(0) : rest + (top - own) + (1 - hit) * own + z_loss * xi * xi;
    static_cast<C*>(a.factor)[r] = t < 0 ? C(0) : factor;
  }
}

void launch_rows_of_logits(const Stream& s, const Call& c) {
  const auto& attrs = c.attrs->as<LinearCrossEntropyAttrs>();
  LogitRows a{RowLayout(c.out[2], 1), Targets(c.in[2], attrs.ignore_index), c.out[0].data, c.out[1].data};
  a.rows = c.out[2].layout.shape[0], a.n = c.out[2].layout.shape[1];
  a.hit = 1 - attrs.smoothing, a.z_loss = attrs.z_loss;
  if (a.rows == 0) return;
  with_float(c.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    using Row = Held<S, 1, sizeof(S) < 8 ? 8 : 4>;
    const auto run = [&](int per_thread, auto kernel) {
      launch_rows(s, Teams(a.n, per_thread, false), a.rows, kernel, a, s.faults);
    };
    fits<S, Row>(a.n, a.rows, {&a.logits})
        ? run(Row::per_thread, gradients_of_rows<S, Row>)
        : run(ReadRow<S, 1>::per_thread, gradients_of_rows<S, ReadRow<S, 1>>);
  });
}

struct LogitsPlan final : KernelPlan {
  explicit LogitsPlan(const Call& c) {
    const std::int64_t unit = c.attrs->as<LinearCrossEntropyAttrs>().unit;
    if (unit > 0) attrs = MatmulInUnitsAttrs{unit};
    product = (unit > 0 ? matmul_in_units_kernel : matmul_kernel).plan(product_of(c));
  }
  void launch(const Stream& s, const Call& c) const override {
    product->launch(s, product_of(c));
    launch_rows_of_logits(s, c);
  }
  std::size_t workspace(const Call& c) const override { return product->workspace(product_of(c)); }
  std::string choice(const Call& c) const override {
    return product->choice(product_of(c)) + ", and a pass over its rows";
  }

 private:
  Call product_of(const Call& c) const {
    Call call = c;
    call.in = c.in.first(2), call.out = c.out.subspan(2, 1), call.attrs = &attrs;
    return call;
  }

  Attrs attrs;  // of the GEMM
  PlanPtr product;
};

PlanPtr plan(const Call& c) {
  if (PlanPtr head_loss = plan_head_loss(c)) return head_loss;
  return std::make_unique<LogitsPlan>(c);
}

}  // namespace

extern const Kernel linear_cross_entropy_kernel{&plan};

}  // namespace tg::cuda
