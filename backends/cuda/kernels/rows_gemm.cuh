// What the kernels of rows_gemm share: the product, where k is cut, and how results are written.
#pragma once

#include "backends/cuda/kernels/elements.cuh"
#include "backends/cuda/kernels/gelu.cuh"
#include "backends/cuda/rows_gemm.h"
#include "backends/cuda/tile/prefetch.cuh"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "backends/cuda/tile/ptx_sm90.cuh"
#endif

namespace tg::cuda {

constexpr int k_slices = 8;  // of k, whose sums are added in their order
constexpr int k_chunk = 32;  // of k, which a warp multiplies together; a slice is a number of chunks

// The product may begin before the kernel before it has ended. What no step of the program writes it may read
// at once; for everything else it waits.
__device__ __forceinline__ void let_product_after_begin() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::let_next_kernel_begin();
#endif
}
__device__ __forceinline__ void wait_for_step_before() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::wait_for_kernel_before();
#endif
}

// What is added to a number of y: d, or the sum of d and e.
struct Added {
  float d = 0, e = 0;
};

// Operands with strides along the product's axes; a broadcast axis has stride 0.
struct RowsProduct {
  enum Which { x, w, d, e, y, operands };
  const std::byte* data[operands];  // null where there is none
  Strides batch[operands];          // leading axes of the product
  i64 row[operands], col[operands];
  bool constant[operands];  // no step of the program writes it
  int m, n, k, batches;
  bool wide;  // d, e and y are f32, though x and w are not
  // [batches, m, n], null where nobody reads them: d + e, and `function` of y.
  std::byte *sum, *result;
  RowsContext::Function function;

  template <class S>
  __device__ __forceinline__ const S* at(Which which, int item) const {
    // A loop, for most products have one item: their kernel is short, and its code is there when it runs.
    i64 offset = 0;
    auto left = static_cast<unsigned>(item);
#pragma unroll 1
    for (int a = batches == 1 ? -1 : batch[which].rank - 1; a >= 0; --a) {
      const auto size = static_cast<unsigned>(batch[which].size[a]);
      offset += left % size * batch[which].stride[a];
      left /= size;
    }
    return reinterpret_cast<const S*>(data[which]) + offset;
  }

  // The first chunk of a slice.
  __device__ __forceinline__ int slice(int nth) const {
    return (k + k_chunk - 1) / k_chunk * nth / k_slices;
  }

  // Reads those of d and e that are constant, or those that are not, for number (i, j) of y.
  template <class S>
  __device__ __forceinline__ void read_added(Added& to, bool those, int item, int i, int j) const {
    if (i >= m || j >= n) return;
    if (sizeof(S) < sizeof(float) && wide)
      read_added_as<float>(to, those, item, i, j);
    else
      read_added_as<S>(to, those, item, i, j);
  }

  // The constant ones of d and e for a row's `outputs` numbers from (i, j0) on, to the second-level cache:
  // they are read when the tile has been multiplied.
  template <class S, int outputs>
  __device__ __forceinline__ void prefetch_added(int item, int i, int j0) const {
    const int j = j0 + threadIdx.x;
    if (threadIdx.x >= outputs || i >= m || j >= n) return;
    for (const Which which : {d, e})
      if (data[which] && constant[which]) {
        const i64 at_j = i * row[which] + j * col[which];
        if (sizeof(S) < sizeof(float) && wide)
          ptx::prefetch_to_second_level(at<float>(which, item) + at_j);
        else
          ptx::prefetch_to_second_level(at<S>(which, item) + at_j);
      }
  }

  // y = sum(i, j) + added(i, j) for a tile of so many rows and outputs from (i0, j0) on, by the whole block.
  template <class S, int rows, int outputs, int threads, class Sum, class Adds>
  __device__ __forceinline__ void write(int item, int i0, int j0, Sum&& sum_of, Adds&& added) const {
    if (sizeof(S) < sizeof(float) && wide)
      write_as<float, rows, outputs, threads>(item, i0, j0, sum_of, added);
    else
      write_as<S, rows, outputs, threads>(item, i0, j0, sum_of, added);
  }
  template <class S, int rows, int outputs, int threads, class Sum>
  __device__ __forceinline__ void write(int item, int i0, int j0, Sum&& sum_of) const {
    write<S, rows, outputs, threads>(item, i0, j0, sum_of, [&](int i, int j) {
      Added a;
      read_added<S>(a, true, item, i, j), read_added<S>(a, false, item, i, j);
      return a;
    });
  }

 private:
  template <class S>
  __device__ __forceinline__ void read_added_as(Added& to, bool those, int item, int i, int j) const {
    if (data[d] && constant[d] == those) to.d = widen(at<S>(d, item)[i * row[d] + j * col[d]]);
    if (data[e] && constant[e] == those) to.e = widen(at<S>(e, item)[i * row[e] + j * col[e]]);
  }

  template <class S, int rows, int outputs, int threads, class Sum, class Adds>
  __device__ __forceinline__ void write_as(int item, int i0, int j0, Sum&& sum_of, Adds&& added_to) const {
    S* const to = const_cast<S*>(at<S>(y, item));
#pragma unroll 1
    for (int e = threadIdx.x; e < rows * outputs; e += threads) {
      const int i = i0 + e / outputs, j = j0 + e % outputs;
      if (i >= m || j >= n) continue;
      float value = sum_of(i - i0, j - j0);
      const i64 number = (i64{item} * m + i) * n + j;
      if (data[d]) {
        Added added = added_to(i, j);
        if (data[RowsProduct::e]) {
          const S both = narrow<S>(added.d + added.e);  // as in a step of its own
          added.d = widen(both);
          if (sum) reinterpret_cast<S*>(sum)[number] = both;
        }
        value += added.d;
      }
      const S rounded = narrow<S>(value);
      if (data[y]) to[i * row[y] + j * col[y]] = rounded;
      if (result) reinterpret_cast<S*>(result)[number] = narrow<S>(function_of(widen(rounded)));
    }
  }

  __device__ __forceinline__ float function_of(float a) const {
    return function == RowsContext::gelu ? gelu_of(a) : gelu_tanh_of(a);
  }
};

// rows_gemm_many.cu: of more than 64 rows, in tiles that give each multiprocessor enough to do; of more than
// 16, if they do so without a second tile of rows.
bool are_many_rows(const RowsProduct& p, const Gpu& gpu);
void launch_many_rows(const Stream& s, const RowsProduct& p, __nv_bfloat16, bool along_k);
void launch_many_rows(const Stream& s, const RowsProduct& p, __half, bool along_k);

}  // namespace tg::cuda
