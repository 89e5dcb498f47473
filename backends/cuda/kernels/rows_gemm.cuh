// What the kernels of rows_gemm share: the product, where k is cut, and how results are written.
#pragma once

#include "backends/cuda/kernels/elements.cuh"

namespace tg::cuda {

constexpr int k_slices = 8;  // of k, whose sums are added in their order
constexpr int k_chunk = 32;  // of k, which a warp multiplies together; a slice is a number of chunks

// Operands with strides along the product's axes; a broadcast axis has stride 0.
struct RowsProduct {
  enum Which { x, w, d, y };
  const std::byte* data[4];
  Strides batch[4];  // leading axes of the product
  i64 row[4], col[4];
  int m, n, k, batches;
  bool wide;  // d and y are f32, though x and w are not

  template <class S>
  __device__ __forceinline__ const S* at(Which which, int item) const {
    return reinterpret_cast<const S*>(data[which]) + batch[which].offset(static_cast<unsigned>(item));
  }

  // The first chunk of a slice.
  __device__ __forceinline__ int slice(int nth) const {
    return static_cast<int>(i64{(k + k_chunk - 1) / k_chunk} * nth / k_slices);
  }

  // y = sum(i, j) + d for a tile of so many rows and outputs from (i0, j0) on, by the whole block.
  template <class S, int rows, int outputs, int threads, class Sum>
  __device__ __forceinline__ void write(int item, int i0, int j0, Sum&& sum) const {
    if (sizeof(S) < sizeof(float) && wide)
      write_as<float, rows, outputs, threads>(item, i0, j0, sum);
    else
      write_as<S, rows, outputs, threads>(item, i0, j0, sum);
  }

 private:
  template <class S, int rows, int outputs, int threads, class Sum>
  __device__ __forceinline__ void write_as(int item, int i0, int j0, Sum&& sum) const {
    const S* const added = data[d] ? at<S>(d, item) : nullptr;
    S* const to = const_cast<S*>(at<S>(y, item));
#pragma unroll 1
    for (int e = threadIdx.x; e < rows * outputs; e += threads) {
      const int i = e / outputs, j = e % outputs;
      if (i0 + i >= m || j0 + j >= n) continue;
      float value = sum(i, j);
      if (added) value += widen(added[(i0 + i) * row[d] + (j0 + j) * col[d]]);
      to[(i0 + i) * row[y] + (j0 + j) * col[y]] = narrow<S>(value);
    }
  }
};

// rows_gemm_many.cu: of more than 64 rows, in tiles that give each multiprocessor enough to do.
bool are_many_rows(const RowsProduct& p, const Gpu& gpu);
void launch_many_rows(const Stream& s, const RowsProduct& p, __nv_bfloat16, bool along_k);
void launch_many_rows(const Stream& s, const RowsProduct& p, __half, bool along_k);

}  // namespace tg::cuda
