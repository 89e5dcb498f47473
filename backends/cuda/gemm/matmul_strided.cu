#include <tilegrad/core/base/error.h>
#include "backends/cuda/gemm/matmul.h"
#include "backends/cuda/kernels/elements.cuh"

namespace tg::cuda {

namespace {

constexpr int tile = 16;

struct Operands {
  Strides batch[4];  // leading axes of the GEMM for a, b, d, c
  i64 row[4], col[4];
};

// One thread computes one element of C. Tiles of A and B are staged in shared memory. O is the dtype of C and
// D.
template <class S, class O>
__global__ void multiply(const S* a, const S* b, const O* d, O* c, Operands o, i64 m, i64 n, i64 k,
                         i64 batches) {
  begin_early();
  using C = compute_t<S>;
  __shared__ C left[tile][tile + 1], right[tile][tile + 1];
  const i64 row_tiles = (m + tile - 1) / tile, column_tiles = (n + tile - 1) / tile;
  const int x = threadIdx.x, y = threadIdx.y;
  for (i64 t = blockIdx.x; t < batches * row_tiles * column_tiles; t += gridDim.x) {
    const i64 item = t / (row_tiles * column_tiles), i = t / column_tiles % row_tiles * tile + y,
              j = t % column_tiles * tile + x;
    const S* ai = a + o.batch[0].offset(item);
    const S* bi = b + o.batch[1].offset(item);
    C sum = 0;
    for (i64 p = 0; p < k; p += tile) {
      left[y][x] = i < m && p + x < k ? widen(ai[i * o.row[0] + (p + x) * o.col[0]]) : C(0);
      right[y][x] = j < n && p + y < k ? widen(bi[(p + y) * o.row[1] + j * o.col[1]]) : C(0);
      __syncthreads();
      for (int q = 0; q < tile; ++q) sum += left[y][q] * right[q][x];
      __syncthreads();
    }
    if (i < m && j < n) {
      if (d) sum += widen(d[o.batch[2].offset(item) + i * o.row[2] + j * o.col[2]]);
      c[o.batch[3].offset(item) + i * o.row[3] + j * o.col[3]] = narrow<O>(sum);
    }
  }
}

}  // namespace

void multiply_strided(const Stream& s, const Call& call) {
  const Shape& out = call.out[0].layout.shape;
  const int r = out.size();
  const i64 m = out[r - 2], n = out[r - 1], k = call.in[0].layout.shape[call.in[0].layout.rank() - 1];
  i64 batches = 1;
  for (int a = 0; a + 2 < r; ++a) batches *= out[a];
  if (batches * m * n == 0) return;
  Operands o{};
  const auto put = [&](int which, const Arg& x, i64 rows, i64 columns) {
    const tg::Strides strides = product_strides(x, out, rows, columns);
    o.batch[which].rank = r - 2;
    for (int a = 0; a + 2 < r; ++a) o.batch[which].size[a] = out[a], o.batch[which].stride[a] = strides[a];
    o.row[which] = strides[r - 2], o.col[which] = strides[r - 1];
  };
  const bool adds = call.in.size() == 3;
  put(0, call.in[0], m, k), put(1, call.in[1], k, n), put(3, call.out[0], m, n);
  if (adds) put(2, call.in[2], m, n);
  with_float(call.in[0].dtype, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    const auto run = [&](auto* result) {
      using O = pointee_t<decltype(result)>;
      const i64 tiles = batches * ((m + tile - 1) / tile) * ((n + tile - 1) / tile);
      launch_early(s, {blocks_for(tiles, 1), dim3(tile, tile)}, multiply<S, O>,
                   reinterpret_cast<const S*>(call.in[0].data), reinterpret_cast<const S*>(call.in[1].data),
                   adds ? reinterpret_cast<const O*>(call.in[2].data) : nullptr,
                   reinterpret_cast<O*>(call.out[0].data), o, m, n, k, batches);
    };
    call.out[0].dtype == call.in[0].dtype ? run(type) : run(static_cast<compute_t<S>*>(nullptr));
  });
}

}  // namespace tg::cuda
