// layer_norm and rms_norm over the last axis (formulas: ops/norm.cpp): the mean first, then the mean of
// squares of what is left, from registers.
#include "backends/cuda/kernels/norm.cuh"

namespace tg::cuda {

namespace {

struct Norm {
  Rows x, y;
  NormVector weight, bias;
  void *mean, *scale;  // [rows], the compute type; no mean for rms_norm
  i64 n, rows;
  double eps;
  bool across;
};

// y = (x - μ)/σ ⊛ w + b,  σ² = mean((x - μ)²) + eps; μ = 0 for rms_norm.
template <class S, bool centred, class Row>
__global__ void __launch_bounds__(most_threads) normalize(const __grid_constant__ Norm a) {
  using C = compute_t<S>;
  const Team<!Row::held> team(a.across);
  const NormValues<C, Row> weight(a.weight, team, a.n, pack_of<S>), bias(a.bias, team, a.n, pack_of<S>);
  const i64 per_block = team.across ? 32 : blockDim.y;
  const auto load = [&](i64 r) {
    const i64 n = r < a.rows ? a.n : 0, steps[1] = {a.x.step};
    const S* const in[1] = {n > 0 ? a.x.at<S>(r) : nullptr};
    return typename Row::Loaded(team, n, in, steps);
  };
  const C part = C(1) / static_cast<C>(a.n), eps = static_cast<C>(a.eps);
  const i64 all = gridDim.x * per_block;
  auto next = load(blockIdx.x * per_block + team.index);
  for (i64 first = blockIdx.x * per_block; first < a.rows; first += all) {
    const i64 r = first + team.index;
    Row row(next);
    next = load(r + all);
    C mu = 0, squares = 0;
    if (centred) {
      row.read([&](C x, i64, int) { mu += x; });
      mu = team.sum(mu) * part;
    }
    row.read([&](C x, i64, int) { squares += (x - mu) * (x - mu); });
    const C s = C(1) / sqrt(team.sum(squares) * part + eps);
    if (r >= a.rows) continue;
    row.write(a.y.at<S>(r), a.y.step, [&](C x, i64 i, int slot) {
      C v = (x - mu) * s;
      if (a.weight.data) v *= weight.at(i, slot);
      if (a.bias.data) v += bias.at(i, slot);
      return v;
    });
    if (team.rank > 0) continue;
    if (centred) static_cast<C*>(a.mean)[r] = mu;
    static_cast<C*>(a.scale)[r] = s;
  }
}

template <bool centred>
void run(const Stream& s, const Call& c) {
  const auto& attrs = c.attrs->as<NormAttrs>();
  const int last = c.in[0].layout.rank() - 1;
  Norm a{Rows(c.in[0], last), Rows(c.out[0], last)};
  if (attrs.weight) a.weight = NormVector(c.in[1]);
  if (attrs.bias) a.bias = NormVector(c.in[2]);
  a.mean = centred ? c.out[1].data : nullptr;
  a.scale = c.out[centred ? 2 : 1].data;
  a.n = c.in[0].layout.shape.back(), a.eps = attrs.eps;
  a.rows = c.out[1].layout.numel();
  if (a.rows == 0) return;
  a.across = a.x.step != 1;
  const Teams teams(a.n, norm_slots, a.across);
  const unsigned grid = teams.grid(a.rows, 8ll * s.gpu.processors);
  with_float(c.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    constexpr int pack = pack_of<S>;
    const bool held = a.n <= norm_slots * most_threads && takes_packs(a.x, a.n, pack, sizeof(S)) &&
                      takes_packs(a.y, a.n, pack, sizeof(S));
    if (held)
      launch_kernel(s, {grid, teams.block}, normalize<S, centred, HeldRow<S, 1, pack, norm_packs<S>>>, a);
    else
      launch_kernel(s, {grid, teams.block}, normalize<S, centred, ReadRow<S, 1>>, a);
  });
}

}  // namespace

const Kernel layer_norm_kernel{&run<true>};
const Kernel rms_norm_kernel{&run<false>};

}  // namespace tg::cuda
