// layer_norm and rms_norm over the last axis (formulas: ops/norm.cpp): the mean first, then the mean of
// squares of what is left, from registers.
#include "backends/cuda/kernels/norm_short.cuh"

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
  const auto load = [&](i64 r) { return load_row<S, Row>(team, a.x, r, a.rows, a.n); };
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

// Blocks that a multiprocessor has registers for if lanes have so many elements of a row: for each, its
// value, and the next row's as it is stored.
template <class S, int slots>
constexpr int short_blocks() {
  constexpr int registers = 34 + slots + slots * static_cast<int>(sizeof(S)) / 4;
  return registers <= 62 ? 4 : registers <= 78 ? 3 : 2;
}

// The same for short rows, a warp each. A warp asks for its next row before it works on this one.
template <class S, bool centred, int V, int K>
__global__ void __launch_bounds__(short_threads, short_blocks<S, V * K>())
    normalize_short(const __grid_constant__ Norm a) {
  using C = compute_t<S>;
  TG_DYNAMIC_SHARED(shared, 16);
  const int n = static_cast<int>(a.n);
  C *weight = reinterpret_cast<C*>(shared), *bias = weight + n;  // [n] each
  const i64 step = i64(gridDim.x) * short_warps, first = i64(blockIdx.x) * short_warps + threadIdx.x / 32;
  ShortRow<S, V, K> next;
  if (first < a.rows) next.load(even_row<S>(a.x, first), n);
  stage(weight, a.weight, n, C(1));
  stage(bias, a.bias, n, C(0));
  __syncthreads();
  const C part = C(1) / static_cast<C>(n), eps = static_cast<C>(a.eps);
  for (i64 r = first; r < a.rows; r += step) {
    ShortRow<S, V, K> row = next;
    if (r + step < a.rows) next.load(even_row<S>(a.x, r + step), n);
    C x[K][V], mu = 0, squares = 0;
    each_of_short<V, K>(n, [&](int k, int e, int) {
      x[k][e] = widen(row.pack[k].at[e]);
      if (centred) mu += x[k][e];
    });
    if (centred) mu = sum_of_warp(mu) * part;
    each_of_short<V, K>(n, [&](int k, int e, int) {
      x[k][e] -= mu;
      squares += x[k][e] * x[k][e];
    });
    const C scale = C(1) / sqrt(sum_of_warp(squares) * part + eps);
    __syncwarp();  // weight and bias are not to be kept in registers from row to row
    each_of_short<V, K>(n, [&](int k, int e, int i) {
      row.pack[k].at[e] = narrow<S>(x[k][e] * scale * weight[i] + bias[i]);
    });
    row.store(even_row<S>(a.y, r), n);
    if (threadIdx.x % 32 > 0) continue;
    if (centred) static_cast<C*>(a.mean)[r] = mu;
    static_cast<C*>(a.scale)[r] = scale;
  }
}

// True if the rows are short enough, and lie well.
template <class S, bool centred>
bool run_short(const Stream& s, const Norm& a) {
  if (!evenly_spaced(a.x) || !evenly_spaced(a.y)) return false;
  return with_short<S>(a.n, [&](auto V, auto K) {
    const i64 blocks = (a.rows + short_warps - 1) / short_warps;
    const i64 most = short_blocks<S, V * K>() * s.gpu.processors;
    const auto shared = static_cast<std::size_t>(a.n) * 2 * sizeof(compute_t<S>);
    launch_kernel(s, {static_cast<unsigned>(std::min(blocks, most)), short_threads, shared},
                  normalize_short<S, centred, V, K>, a);
  });
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
  with_float(c.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    constexpr int pack = pack_of<S>;
    const bool held = a.n <= norm_slots * most_threads && takes_packs(a.x, a.n, pack, sizeof(S)) &&
                      takes_packs(a.y, a.n, pack, sizeof(S));
    if (held && run_short<S, centred>(s, a)) return;
    if (held)
      launch_rows(s, teams, a.rows, normalize<S, centred, HeldRow<S, 1, pack, norm_packs<S>>>, a);
    else
      launch_rows(s, teams, a.rows, normalize<S, centred, ReadRow<S, 1>>, a);
  });
}

}  // namespace

const Kernel layer_norm_kernel{&run<true>};
const Kernel rms_norm_kernel{&run<false>};

}  // namespace tg::cuda
