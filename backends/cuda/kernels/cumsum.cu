// cumsum: out_i = Σ_{j ≤ i} x_j along an axis, or Σ_{j ≥ i} x_j in reverse. Floats are summed in f64. A block
// processes one line, chunk by chunk. If many lines interleave in memory, each thread processes one line.
#include "backends/cuda/kernels/rows.cuh"
#include "ops/index.h"

namespace tg::cuda {

namespace {

struct Lines {
  RowLayout x, y;
  DType type;
  i64 n, count;
  bool reverse;
};

constexpr int block = 256, each = 4;

// Returns the sum of v over all previous threads. `total` becomes the sum over all threads.
template <class C>
__device__ __forceinline__ C sum_before(C v, C& total) {
  __shared__ C of_warp[block / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  C sum = v;
#pragma unroll
  for (int by = 1; by < 32; by *= 2) {
    const C other = __shfl_up_sync(0xffffffffu, sum, by);
    if (lane >= by) sum += other;
  }
  C before = __shfl_up_sync(0xffffffffu, sum, 1);
  if (lane == 0) before = 0;
  __syncthreads();
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  C offset = 0;
  total = 0;
  for (int w = 0; w < block / 32; ++w) {
    if (w == warp) offset = total;
    total += of_warp[w];
  }
  return offset + before;
}

template <class C>
__global__ void __launch_bounds__(block) along_lines(const __grid_constant__ Lines a) {
  begin_early();
  for (i64 line = blockIdx.x; line < a.count; line += gridDim.x) {
    const i64 x = a.x.offset(line), y = a.y.offset(line);
    C carry = 0;
    for (i64 first = 0; first < a.n; first += block * each) {
      const i64 begin = first + threadIdx.x * each;
      C v[each], sum = 0, total;
#pragma unroll
      for (int e = 0; e < each; ++e) {
        const i64 i = a.reverse ? a.n - 1 - begin - e : begin + e;
        v[e] = begin + e < a.n ? load_as<C>(a.x.data, a.type, x + i * a.x.step) : C(0);
        sum += v[e];
      }
      C at = carry + sum_before(sum, total);
      carry += total;
#pragma unroll
      for (int e = 0; e < each; ++e) {
        const i64 i = a.reverse ? a.n - 1 - begin - e : begin + e;
        at += v[e];
        if (begin + e < a.n) store_as(a.y.data, a.type, y + i * a.y.step, at);
      }
    }
  }
}

template <class C>
__global__ void __launch_bounds__(block) across_lines(const __grid_constant__ Lines a) {
  begin_early();
  for (i64 line = i64(blockIdx.x) * block + threadIdx.x; line < a.count; line += i64(gridDim.x) * block) {
    const i64 x = a.x.offset(line), y = a.y.offset(line);
    C sum = 0;
#pragma unroll 4
    for (i64 t = 0; t < a.n; ++t) {
      const i64 i = a.reverse ? a.n - 1 - t : t;
      sum += load_as<C>(a.x.data, a.type, x + i * a.x.step);
      store_as(a.y.data, a.type, y + i * a.y.step, sum);
    }
  }
}

template <class C>
void cumsum_as(const Stream& s, const Lines& a) {
  if (a.n <= 32 || (a.x.step != 1 && a.count >= 1024))
    launch_early(s, {blocks_for(a.count, block), block}, across_lines<C>, a);
  else
    launch_early(s, {blocks_for(a.count, 1), block}, along_lines<C>, a);
}

void launch_cumsum(const Stream& s, const Call& c) {
  const auto& attrs = c.attrs->as<CumsumAttrs>();
  const int axis = static_cast<int>(attrs.axis);
  const Layout& l = c.out[0].layout;
  if (l.numel() == 0) return;
  const i64 n = l.shape[axis];
  const Lines a{
      RowLayout(c.in[0], axis), RowLayout(c.out[0], axis), c.in[0].dtype, n, l.numel() / n, attrs.reverse};
  is_float(a.type) ? cumsum_as<double>(s, a) : cumsum_as<i64>(s, a);
}

}  // namespace

extern const Kernel cumsum_kernel{&launch_cumsum};

}  // namespace tg::cuda
