// The gradients of attention's bias and sink. Scores are recomputed here because these gradients are too rare
// to slow the fast kernels down. One block sums over the axes the bias was broadcast along, in a fixed order.
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/plain.cuh"

namespace tg::cuda::attention {

namespace plain {

// One block per part of z_bias: z_A (after the cap) is summed tile by tile over the axes the bias does not
// have, then the tile is summed over its rows or columns if the bias does not have those.
template <class S>
__global__ void __launch_bounds__(threads, 1)
    bias_gradient(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const AttentionCall::Bias& z = x.z_bias;
  int part = blockIdx.x;
  const auto span = [&](i64 stride, int n, int size) {  // of an axis: a part if the bias has it, else all
    if (stride == 0) return Span{0, n};
    const int parts = (n + size - 1) / size, from = part % parts * size;
    part /= parts;
    return Span{from, min(from + size, n)};
  };
  const Span keys = span(z.col, x.T, edge), queries = span(z.row, x.L, edge), heads = span(z.head, x.H, 1),
             batch = span(z.batch, x.B, 1);
  Tile<C> sum{};
  for_each_gradient<S>(x, work, false, batch, heads, queries, keys,
                       [&](Tile<C>&, Tile<C>& za, const Head<S>&, int, int) {
                         sum.for_each([&](int r, int c, C& e) { e += za.x[r][c]; });
                       });
  put<false>(s, sum);
  __syncthreads();
  S* out = static_cast<S*>(z.data) + batch.from * z.batch + heads.from * z.head + queries.from * z.row +
           keys.from * z.col;
  const int rows = z.row ? queries.to - queries.from : 1, columns = z.col ? keys.to - keys.from : 1;
  for (int n = threadIdx.x; n < rows * columns; n += threads) {
    const int i = n / columns, j = n % columns;
    C total = 0;
    for (int r = i; r < (z.row ? i + 1 : edge); ++r)
      for (int c = j; c < (z.col ? j + 1 : edge); ++c) total += s.p[r][c];
    out[i * z.row + j * z.col] = narrow<S>(total);
  }
}

// z_sink[h] = −Σ exp(sink − ξ)·u over the rows of the head. One block per head.
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
