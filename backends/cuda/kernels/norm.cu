// layer_norm and rms_norm over the last axis (formulas: ops/norm.cpp). The mean is computed first. The mean
// square of the differences from the mean is computed second. Both read registers.
#include "backends/cuda/kernels/norm_short.cuh"

namespace tg::cuda {

namespace {

struct Norm {
  RowLayout x, y;
  NormVector weight, bias;
  void *mean, *scale;  // [rows] of the compute type; rms_norm has no mean
  i64 n, rows;
  double eps, part;  // part: 1/n
  bool across;
  bool constant_vectors;  // no step writes weight and bias
};

// y = (x - μ)/σ ⊛ w + b,  σ² = mean((x - μ)²) + eps; μ = 0 for rms_norm.
template <class S, bool centred, class Row>
__global__ void __launch_bounds__(most_threads) normalize(const __grid_constant__ Norm a) {
  begin_early();
  using C = compute_t<S>;
  TG_DYNAMIC_SHARED(shared, 16);
  Team<!Row::held> team(a.across);
  const i64 per_block = team.across ? 32 : blockDim.y, step = gridDim.x * per_block;
  const auto load = [&](i64 r) { return load_row<S, Row>(team, r, a.rows, a.n, a.x); };
  auto next = load(blockIdx.x * per_block + team.index);
  const i64 staged = Row::held ? a.n : 0;
  C* vectors = reinterpret_cast<C*>(shared);
  const StagedVector<C, pack_of<S>> weight(a.weight, vectors, staged),
      bias(a.bias, vectors + staged, staged);  // a bias implies a weight
  __syncthreads();
  const C part = C(1) / static_cast<C>(a.n), eps = static_cast<C>(a.eps);
  for (i64 first = blockIdx.x * per_block; first < a.rows; first += step) {
    const i64 r = first + team.index;
    const Row row = next;
    next = load(r + step);
    const C mu = centred ? team.sum(row.sum([](C x, auto) { return x; })) * part : C(0);
    const C squares = row.sum([&](C x, auto) { return (x - mu) * (x - mu); });
    const C s = C(1) / sqrt(team.sum(squares) * part + eps);
    if (r >= a.rows) continue;
    S* out = a.y.at<S, Row::held>(r);
    if constexpr (Row::held)
      row.write_packs(out, [&](C(&x)[Row::V], int p) {
#pragma unroll
        for (C& e : x) e = (e - mu) * s;
        weight.multiply(x, p);
        bias.add(x, p);
      });
    else
      row.write(out, a.y.step, [&](C x, i64 i) {
        C v = (x - mu) * s;
        if (a.weight.data) v *= element<C>(a.weight, i);
        if (a.bias.data) v += element<C>(a.bias, i);
        return v;
      });
    if (team.rank > 0) continue;
    if (centred) static_cast<C*>(a.mean)[r] = mu;
    static_cast<C*>(a.scale)[r] = s;
  }
}

// Normalizes rows for batch-invariant programs. Each row has one block. Each thread has one pack. It issues
// all of its loads before it waits for the first one. Weight and bias are loaded before the previous kernel
// has finished, because they may have to be fetched from memory.
template <class S, bool centred>
__global__ void __launch_bounds__(1024) normalize_row_per_block(const __grid_constant__ Norm a) {
  let_next_kernel_begin();
  if (!a.constant_vectors) wait_for_kernel_before();
  using C = compute_t<S>;
  constexpr int V = pack_of<S>;
  Team<false> team(false);
  const i64 r = blockIdx.x, i = i64{threadIdx.x} * V;
  const bool here = i < a.n;
  C x[V], w[V], b[V];
  const i64 at = here ? i : 0;
  load_pack<S>(w, a.weight, at, C(1));
  load_pack<S>(b, a.bias, at, C(0));
  if (a.constant_vectors) wait_for_kernel_before();
  Words<S, V> pack{};
  if (here) pack = *reinterpret_cast<const Words<S, V>*>(a.x.at<S, true>(r) + i);
  unpack(pack, x);
  C mu, scale;
  normalise_pack<centred>(
      x, w, b, here, static_cast<C>(a.part), static_cast<C>(a.eps), [&](C v) { return team.sum(v); }, mu,
      scale);
  if (!here) return;
  *reinterpret_cast<Words<S, V>*>(a.y.at<S, true>(r) + i) = packed<S>(x);
  if (i > 0) return;
  if (centred) static_cast<C*>(a.mean)[r] = mu;
  static_cast<C*>(a.scale)[r] = scale;
}

// Returns the number of blocks for which a multiprocessor has registers, if each lane has `slots` elements of
// a row. An element needs registers for its value, and for the element of the next row in the storage type.
template <class S, int slots>
constexpr int short_blocks() {
  constexpr int registers = 34 + slots + slots * static_cast<int>(sizeof(S)) / 4;
  return registers <= 62 ? 4 : registers <= 78 ? 3 : 2;
}

// Normalizes short rows. Each row has one warp. A warp starts to load its next row before it processes the
// current row.
template <class S, bool centred, int V, int K>
__global__ void __launch_bounds__(short_threads, short_blocks<S, V * K>())
    normalize_short(const __grid_constant__ Norm a) {
  begin_early();
  using C = compute_t<S>;
  TG_DYNAMIC_SHARED(shared, 16);
  const int n = static_cast<int>(a.n);
  C* vectors = reinterpret_cast<C*>(shared);
  const i64 step = i64(gridDim.x) * short_warps, first = i64(blockIdx.x) * short_warps + threadIdx.x / 32;
  ShortRow<S, V, K> next;
  if (first < a.rows) next.load(even_row<S>(a.x, first), n);
  const StagedVector<C, V> weight(a.weight, vectors, n), bias(a.bias, vectors + n, n);
  __syncthreads();
  const C part = C(1) / static_cast<C>(n), eps = static_cast<C>(a.eps);
  for (i64 r = first; r < a.rows; r += step) {
    const ShortRow<S, V, K> row = next;
    if (r + step < a.rows) next.load(even_row<S>(a.x, r + step), n);
    C x[K][V], mu = 0, squares = 0;
    row.each(n, [&](int k, int) {
      unpack(row.pack[k], x[k]);
#pragma unroll
      for (const C v : x[k]) mu += v;
    });
    mu = centred ? sum_of_warp(mu) * part : C(0);
    row.each(n, [&](int k, int) {
#pragma unroll
      for (C& v : x[k]) v -= mu, squares += v * v;
    });
    const C scale = C(1) / sqrt(sum_of_warp(squares) * part + eps);
    S* out = even_row<S>(a.y, r);
    row.each(n, [&](int k, int p) {
#pragma unroll
      for (C& v : x[k]) v *= scale;
      weight.multiply(x[k], p);
      bias.add(x[k], p);
      row.store(out, k, x[k]);
    });
    if (threadIdx.x % 32 > 0) continue;
    if (centred) static_cast<C*>(a.mean)[r] = mu;
    static_cast<C*>(a.scale)[r] = scale;
  }
}

// Returns true if the rows are short enough and aligned.
template <class S, bool centred>
bool run_short(const Stream& s, const Norm& a) {
  if (!evenly_spaced(a.x) || !evenly_spaced(a.y)) return false;
  return with_short<S>(a.n, [&](auto V, auto K) {
    const i64 blocks = (a.rows + short_warps - 1) / short_warps;
    const i64 most = short_blocks<S, V * K>() * s.gpu.processors;
    const auto shared = staged_bytes<S>(a.n, 2);
    launch_early(s, {static_cast<unsigned>(std::min(blocks, most)), short_threads, shared},
                 normalize_short<S, centred, V, K>, a);
  });
}

template <bool centred>
void run_norm(const Stream& s, const Call& c) {
  const auto& attrs = c.attrs->as<NormAttrs>();
  const int last = c.in[0].layout.rank() - 1;
  Norm a{RowLayout(c.in[0], last), RowLayout(c.out[0], last)};
  if (attrs.weight) a.weight = NormVector(c.in[1], c.in[0].dtype);
  if (attrs.bias) a.bias = NormVector(c.in[2], c.in[0].dtype);
  a.mean = centred ? c.out[1].data : nullptr;
  a.scale = c.out[centred ? 2 : 1].data;
  a.n = c.in[0].layout.shape.back(), a.eps = attrs.eps, a.part = 1. / static_cast<double>(a.n);
  a.rows = c.out[1].layout.numel();
  a.constant_vectors =
      std::all_of(c.in.begin() + 1, c.in.end(), [&](const Arg& v) { return is_constant(v, c); });
  if (a.rows == 0) return;
  with_float(c.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    using Row = Held<S>;
    const std::size_t shared = staged_bytes<S>(a.n, (a.weight.data != nullptr) + (a.bias.data != nullptr));
    const bool held = fits<S, Row>(a.n, a.rows, {&a.x, &a.y}) && shared <= most_staged;
    // This condition must not count rows, because results must not depend on their number.
    if (held && c.batch_invariant && a.n <= 1024 * pack_of<S> && a.rows <= INT_MAX) {
      const auto threads = static_cast<unsigned>((a.n / pack_of<S> + 31) / 32 * 32);
      return launch_early(s, {static_cast<unsigned>(a.rows), threads}, normalize_row_per_block<S, centred>,
                          a);
    }
    if (held && run_short<S, centred>(s, a)) return;
    a.across = !held && a.x.step != 1;
    Teams teams(a.n, Row::per_thread, a.across, 512);  // many threads share the weights
    if (held) teams.shared = shared;
    held ? launch_rows(s, teams, a.rows, normalize<S, centred, Row>, a)
         : launch_rows(s, teams, a.rows, normalize<S, centred, ReadRow<S, 1>>, a);
  });
}

}  // namespace

extern const Kernel layer_norm_kernel{&run_norm<true>};
extern const Kernel rms_norm_kernel{&run_norm<false>};

}  // namespace tg::cuda
