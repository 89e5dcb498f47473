// Gradients of attention's bias and sink, from recomputed scores. Calls that need these gradients are rare,
// so the fast kernels do not compute them. Each sum over broadcast axes of the bias is computed by one block,
// in a fixed order.
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/plain.cuh"

namespace tg::cuda::attention {

namespace plain {

// Divides z_bias into parts. Broadcast axes are not divided.
struct BiasGrid {
  int batches, heads, tiles, blocks;
  explicit BiasGrid(const AttentionCall& x) {
    const AttentionCall::Bias& z = x.z_bias;
    batches = z.batch ? int(x.B) : 1, heads = z.head ? x.H : 1;
    tiles = z.row ? tiles_of(x.L) : 1, blocks = z.col ? tiles_of(x.T) : 1;
  }
  i64 parts() const { return i64(batches) * heads * tiles * blocks; }
};

// Computes one part. First sums z_A (after the softcap) over the broadcast axes of the bias, tile by tile. If
// rows or columns are broadcast, then sums the resulting tile over them.
template <class S>
__global__ void __launch_bounds__(threads, 1)
    bias_gradient(const __grid_constant__ AttentionCall x, BiasGrid grid,
                  const __grid_constant__ Workspace work) {
  using C = compute_t<S>;
  Shared<C>& s = shared_memory<C>();
  const AttentionCall::Bias& z = x.z_bias;
  int part = blockIdx.x;
  const int block = part % grid.blocks, t0 = (part /= grid.blocks) % grid.tiles,
            head = (part /= grid.tiles) % grid.heads, batch = part / grid.heads;
  const int tiles = tiles_of(x.L), b1 = z.batch ? batch + 1 : int(x.B), h1 = z.head ? head + 1 : x.H,
            t1 = z.row ? t0 + 1 : tiles, j1 = z.col ? block + 1 : tiles_of(x.T);
  const Dropout<C> dropout(x);
  C sum[4][4] = {};
  for (int b = batch; b < b1; ++b)
    for (int h = head; h < h1; ++h)
      for (int t = t0; t < t1; ++t) {
        const int2 all = work.some[b * tiles + t];
        const int key_head = h / (x.H / x.Hk);
        const Rows<S> k{x.k.at<S>(b, key_head), x.k.row, all.x, all.y, x.d},
            v{x.v.at<S>(b, key_head), x.v.row, all.x, all.y, x.dv};
        const Queries<S> queries(x, work, b, h, t * edge);
        for (int j = block; j < j1; ++j) {
          if (all.x >= (j + 1) * edge || all.y <= j * edge) continue;
          C p[4][4], za[4][4];
          score_gradients(p, za, s, x, queries, k, v, j * edge, dropout, false);
          for (int r = 0; r < 4; ++r)
            for (int c = 0; c < 4; ++c) sum[r][c] += za[r][c];
        }
      }
  put(s, sum, false);
  __syncthreads();
  S* out = static_cast<S*>(z.data) + batch * z.batch + head * z.head;
  const int rows = z.row ? min(edge, x.L - t0 * edge) : 1,
            columns = z.col ? min(edge, x.T - block * edge) : 1;
  for (int n = threadIdx.x; n < rows * columns; n += threads) {
    const int i = n / columns, j = n % columns;
    C total = 0;
    for (int r = i; r < (z.row ? i + 1 : edge); ++r)
      for (int c = j; c < (z.col ? j + 1 : edge); ++c) total += s.p[r][c];
    out[(t0 * edge + i) * z.row + (block * edge + j) * z.col] = narrow<S>(total);
  }
}

// z_sink[h] = −Σ exp(sink − ξ)·u over all rows of the head, computed by one block.
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
    const RowBase<C> base = static_cast<const RowBase<C>*>(work.bases)[at];
    const double p = static_cast<double>(exp(sink - base.shift - base.offset));
    sum -= p * static_cast<double>(static_cast<const C*>(work.u)[at]);
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
    using C = compute_t<S>;
    if (x.z_bias.data) {
      const BiasGrid grid(x);
      launch<C>(bias_gradient<S>, s, grid.parts(), x, grid, work);
    }
    if (x.z_sink && x.H > 0)
      launch_kernel(s, {static_cast<unsigned>(x.H), threads}, sink_gradient<S>, x, work);
  });
}

}  // namespace tg::cuda::attention
