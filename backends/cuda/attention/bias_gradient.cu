// The gradients of attention's bias and sink, recomputing the scores: rare enough to be kept out of the fast
// kernels. Sums over what the bias was broadcast along are made by one block, in a fixed order.
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/plain.cuh"

namespace tg::cuda::attention {

namespace plain {

// Some of an axis, in indices or tiles.
struct Span {
  int from, to;
};

// By a block for each part: z_A (after the cap) summed over the axes the bias does not keep, tile over tile;
// then the summed tile over its rows or columns where those are not kept.
template <class S>
__global__ void __launch_bounds__(threads, 1)
    bias_gradient(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const AttentionCall::Bias& z = x.z_bias;
  int part = blockIdx.x;
  const auto span = [&](i64 stride, int n) {  // of an axis: one of n if the bias keeps it, else all
    const int at = stride ? part % n : 0;
    if (stride) part /= n;
    return Span{at, stride ? at + 1 : n};
  };
  const Span keys = span(z.col, tiles_of(x.T)), queries = span(z.row, tiles_of(x.L)),
             heads = span(z.head, x.H), batch = span(z.batch, x.B);
  const Dropout<C> dropout(x);
  Tile<C> sum{};
  for (int b = batch.from; b < batch.to; ++b)
    for (int h = heads.from; h < heads.to; ++h)
      for (int t = queries.from; t < queries.to; ++t) {
        const Queries<S> tile{x, work, dropout, s, b, h, t * edge};
        tile.load_stats();
        for (int j0 = keys.from * edge; j0 < keys.to * edge; j0 += edge) {
          if (!tile.meet(j0)) continue;
          Tile<C> p, za;
          tile.gradients(p, za, j0, false);
          sum.for_each([&](int r, int c, C& e) { e += za.x[r][c]; });
        }
      }
  put<false>(s, sum);
  __syncthreads();
  const int i0 = queries.from * edge, j0 = keys.from * edge, rows = z.row ? min(edge, x.L - i0) : 1,
            columns = z.col ? min(edge, x.T - j0) : 1;
  S* out = static_cast<S*>(z.data) + batch.from * z.batch + heads.from * z.head + i0 * z.row + j0 * z.col;
  for (int n = threadIdx.x; n < rows * columns; n += threads) {
    const int i = n / columns, j = n % columns;
    C total = 0;
    for (int r = i; r < (z.row ? i + 1 : edge); ++r)
      for (int c = j; c < (z.col ? j + 1 : edge); ++c) total += s.p[r][c];
    out[i * z.row + j * z.col] = narrow<S>(total);
  }
}

// z_sink[h] = −Σ exp(sink − ξ)·u over the rows of the head, by a block.
template <class S>
__global__ void __launch_bounds__(threads, sizeof(S) == 8 ? 1 : 2)
    sink_gradient(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work) {
  using C = compute_t<S>;
  __shared__ double sums[threads];
  const int h = blockIdx.x;
  const C sink = widen(static_cast<const S*>(x.sink)[h]);
  double sum = 0;
  for (i64 n = threadIdx.x; n < i64(x.B) * x.L; n += threads) {
    const i64 at = (n / x.L * x.H + h) * x.L + n % x.L;
    const C lse = static_cast<const C*>(x.lse)[at];
    if (lse != C(-INFINITY))
      sum -= static_cast<double>(exp(sink - lse)) * static_cast<double>(static_cast<const C*>(work.u)[at]);
  }
  sums[threadIdx.x] = sum;
  for (int step = threads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (threadIdx.x < step) sums[threadIdx.x] += sums[threadIdx.x + step];
  }
  if (threadIdx.x == 0) static_cast<S*>(x.z_sink)[h] = narrow<S>(static_cast<C>(sums[0]));
}

}  // namespace plain

void launch_bias_and_sink(const Stream& s, const AttentionCall& x, const Workspace& work) {
  using namespace plain;
  with_float(x.type, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    const AttentionCall::Bias& z = x.z_bias;
    const i64 parts =
        (z.batch ? x.B : 1) * (z.head ? x.H : 1) * (z.row ? tiles_of(x.L) : 1) * (z.col ? tiles_of(x.T) : 1);
    if (z.data) launch<compute_t<S>>(bias_gradient<S>, s, parts, x, work);
    if (x.z_sink && x.H > 0)
      launch_kernel(s, {static_cast<unsigned>(x.H), threads}, sink_gradient<S>, x, work);
  });
}

}  // namespace tg::cuda::attention
