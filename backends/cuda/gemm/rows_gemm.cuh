// Shared by the kernels of rows_gemm: the GEMM's operands, the split of k and the write of results.
#pragma once

#include "backends/cuda/gemm/matmul.h"
#include "backends/cuda/kernels/any.cuh"
#include "backends/cuda/kernels/elements.cuh"
#include "backends/cuda/kernels/gelu.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/tile/ptx_sm80.cuh"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "backends/cuda/tile/ptx_sm90.cuh"
#endif

namespace tg::cuda {

// Number of slices of k. The sums of the first half of the slices are added in order, and so are the sums of
// the second half. Then the two results are added.
constexpr int k_slices = 8;
constexpr int k_chunk =
    32;  // elements of k in a chunk, which a warp multiplies at a time; slices consist of whole chunks
constexpr int k_slice_threads = 32 * k_slices;
constexpr int piece_bytes = 512;  // bytes that the lanes of a warp copy at a time

// Adds the sums of the slices in order. `sum` restarts at the second half and finally becomes the total.
__device__ __forceinline__ void add_slice(int slice, float of_slice, float& half, float& sum) {
  sum = slice % (k_slices / 2) == 0 ? of_slice : sum + of_slice;
  if (slice == k_slices / 2 - 1) half = sum;
  if (slice == k_slices - 1) sum = half + sum;
}

// The addends of V adjacent elements of y along n, as stored in memory. They are d, or d and e. They are
// converted only when they are needed, so no thread waits for them earlier.
template <int V>
struct Added {
  unsigned d[V], e[V];

  template <class T>
  static __device__ __forceinline__ Words<T, V>& as(unsigned (&words)[V]) {
    return reinterpret_cast<Words<T, V>&>(words);
  }
  template <class T>
  static __device__ __forceinline__ const Words<T, V>& as(const unsigned (&words)[V]) {
    return reinterpret_cast<const Words<T, V>&>(words);
  }
};

// The cases that a kernel has code for. Nearly all GEMMs are usual (is_usual). A usual GEMM has one batch
// item and one dtype, and several of its elements can be accessed at a time. For these GEMMs, the function is
// a compile-time constant. A block executes most of its instructions once, and waits until they are fetched.
// Kernels for usual GEMMs therefore contain no code for other cases.
enum class Form { any, usual, usual_gelu, usual_gelu_tanh };

// Operands with strides along the GEMM's axes. A broadcast axis has stride 0.
struct RowsGemm {
  enum Which { x, w, d, e, y, operands };
  // Every block needs these fields. Every launch fetches them from memory, so they are adjacent.
  int m, n, k, batches;
  const std::byte* data[operands];  // null if there is no such operand
  i64 row[operands], col[operands];
  // `sum` is d + e, and `result` is `function` applied to y. Both are [batches, m, n], and each is null if no
  // step reads it.
  std::byte *sum, *result;
  Epilogue function;
  bool constant[operands];  // no step of the program writes it
  bool wide;                // d, e and y are f32, although x and w are not
  bool resident;            // all blocks of the kernel are resident at the same time
  int w_ahead;              // stages of w in flight per warp
  // Number of adjacent elements along n that one instruction can access in d, e, y, sum and result.
  int together;
  Strides batch[operands];  // leading axes of the GEMM

  template <class S, Form form = Form::any>
  __device__ __forceinline__ const S* at(Which which, int item) const {
    if constexpr (form != Form::any) return reinterpret_cast<const S*>(data[which]);
    // The loop is not unrolled. The kernel is therefore short, and its instructions are fetched in time. Most
    // GEMMs have one item and skip the loop.
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

  // Number of blocks with this many rows and outputs each.
  i64 tiles(int rows, int outputs) const {
    return (i64{m} + rows - 1) / rows * ((i64{n} + outputs - 1) / outputs) * batches;
  }
  // Slices begin at even chunks. With 16-bit elements, they therefore consist of whole 128-byte lines.
  __host__ __device__ int longest_slice() const {  // in chunks
    return static_cast<int>((pairs_of_chunks() + k_slices - 1) / k_slices * 2);
  }
  // Returns the first chunk of a slice.
  __device__ __forceinline__ int slice(int nth) const {
    return static_cast<int>(pairs_of_chunks() * static_cast<unsigned>(nth) / k_slices * 2);
  }
  __host__ __device__ unsigned pairs_of_chunks() const {
    return (static_cast<unsigned>(k) + 2 * k_chunk - 1) / (2 * k_chunk);
  }

  // Reads V elements of d and e, starting at (i, j). It reads either only constant operands, or only the
  // other operands.
  template <class S, Form form, int V>
  __device__ __forceinline__ void read_added(Added<V>& to, bool those, int item, int i, int j) const {
    if (i >= m || j >= n || (form == Form::any && together < V)) return;
    if (form == Form::any && sizeof(S) < sizeof(float) && wide)
      read_added_as<float, form>(to, those, item, i, j);
    else
      read_added_as<S, form>(to, those, item, i, j);
  }

  // Prefetches d and e into the L2 cache if they are constant, for `outputs` elements of a row starting at
  // (i, j0). They are read after the tile has been multiplied.
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

  // Writes V elements of y, starting at (i, j): the GEMM's `sums` plus their addends.
  template <class S, Form form, int V>
  __device__ __forceinline__ void write(int item, int i, int j, const float (&sums)[V],
                                        const Added<V>& added) const {
    if (i >= m || j >= n) return;
    if (form == Form::any && sizeof(S) < sizeof(float) && wide)
      write_as<float, form>(item, i, j, sums, added);
    else
      write_as<S, form>(item, i, j, sums, added);
  }

  // Writes a tile of y that starts at (i0, j0). Each thread writes V elements at a time. fill(i, j, sums)
  // provides the GEMM's sums in row i of the tile, starting at output j.
  template <class S, Form form, int rows, int outputs, int threads, class Fill>
  __device__ __forceinline__ void write_tile(int item, int i0, int j0, Fill&& fill) const {
    constexpr int V = 8;
#pragma unroll 1
    for (int at = V * static_cast<int>(threadIdx.x); at < rows * outputs; at += V * threads) {
      const int i = at / outputs, j = at % outputs;
      Added<V> added;
      read_added<S, form>(added, true, item, i0 + i, j0 + j);
      read_added<S, form>(added, false, item, i0 + i, j0 + j);
      alignas(16) float sums[V];
      fill(i, j, sums);
      write<S, form>(item, i0 + i, j0 + j, sums, added);
    }
  }

 private:
  template <class T, Form form, int V>
  __device__ __forceinline__ void read_added_as(Added<V>& to, bool those, int item, int i, int j) const {
    const auto read = [&](Which which, unsigned(&words)[V]) {
      if (data[which] && constant[which] == those)
        to.template as<T>(words) =
            *reinterpret_cast<const Words<T, V>*>(at<T, form>(which, item) + i * row[which] + j);
    };
    read(d, to.d), read(e, to.e);
  }

  template <class T, Form form, int V>
  __device__ __forceinline__ void write_as(int item, int i, int j, const float (&sums)[V],
                                           const Added<V>& added) const {
    if constexpr (form == Form::any)
      if (together < V) return write_one_by_one<T>(item, i, j, sums);
    const i64 number = (i64{item} * m + i) * n + j;
    const auto put = [](std::byte* to, i64 place, const Words<T, V>& words) {
      reinterpret_cast<Words<T, V>*>(reinterpret_cast<T*>(to) + place)[0] = words;
    };
    float value[V], more[V];
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = sums[v];
    if (data[d]) {
      unpack<T>(added.template as<T>(added.d), more);
      if (data[e]) {
        float right[V];
        unpack<T>(added.template as<T>(added.e), right);
#pragma unroll
        for (int v = 0; v < V; ++v) more[v] += right[v];
        const Words<T, V> both = packed<T>(more);  // rounded, as in a separate step
        unpack<T>(both, more);
        if (sum) put(sum, number, both);
      }
#pragma unroll
      for (int v = 0; v < V; ++v) value[v] += more[v];
    }
    const Words<T, V> rounded = packed<T>(value);
    if (data[y])
      *reinterpret_cast<Words<T, V>*>(const_cast<T*>(at<T, form>(y, item)) + i * row[y] + j) = rounded;
    if (form == Form::usual || !result) return;
    unpack<T>(rounded, value);
#pragma unroll
    for (int v = 0; v < V; ++v) value[v] = function_of<T, form>(value[v]);
    put(result, number, packed<T>(value));
  }

  // Writes elements of y one by one. This is for operands with other layouts, and for tiles with elements
  // beyond the end of a row.
  template <class T, int V>
  __device__ __forceinline__ void write_one_by_one(int item, int i, int j, const float (&sums)[V]) const {
#pragma unroll
    for (int v = 0; v < V; ++v, ++j) {
      if (j >= n) return;
      const i64 number = (i64{item} * m + i) * n + j;
      float value = sums[v];
      if (data[d]) {
        float more = widen(at<T>(d, item)[i * row[d] + j * col[d]]);
        if (data[e]) {
          const T both = narrow<T>(more + widen(at<T>(e, item)[i * row[e] + j * col[e]]));
          more = widen(both);
          if (sum) reinterpret_cast<T*>(sum)[number] = both;
        }
        value += more;
      }
      const T rounded = narrow<T>(value);
      if (data[y]) const_cast<T*>(at<T>(y, item))[i * row[y] + j * col[y]] = rounded;
      if (result) reinterpret_cast<T*>(result)[number] = narrow<T>(function_of<T, Form::any>(widen(rounded)));
    }
  }

  template <class T, Form form>
  __device__ __forceinline__ float function_of(float a) const {
    const bool is_gelu = form == Form::any ? function == Epilogue::gelu : form == Form::usual_gelu;
    if constexpr (std::is_same_v<T, float>)
      return is_gelu ? gelu_of(a) : gelu_tanh_of(a);
    else
      return is_gelu ? HalfGelu::gelu(a) : HalfGelu::gelu_tanh(a);
  }
};

inline bool is_usual(const RowsGemm& p) {
  return p.batches == 1 && !p.wide && p.together >= 8;
}
// Calls f with the form of a usual GEMM as an integral constant.
template <class F>
void with_usual_form(const RowsGemm& p, F&& f) {
  if (!p.result) return f(std::integral_constant<Form, Form::usual>());
  p.function == Epilogue::gelu ? f(std::integral_constant<Form, Form::usual_gelu>())
                               : f(std::integral_constant<Form, Form::usual_gelu_tanh>());
}

// On Hopper, lets a GEMM begin before the previous kernel has finished. Returns whether all of its blocks are
// then resident. Two consecutive GEMMs share the multiprocessors. Enough shared memory is reserved to keep a
// third GEMM out.
inline bool begins_early(LaunchShape& shape, i64 blocks, const Gpu& gpu) {
  shape.early = gpu.hopper;
  const bool resident = shape.early && blocks <= 2 * gpu.processors;
  constexpr std::size_t third = 77824;
  if (resident && 2 * blocks > gpu.processors && shape.shared < third) shape.shared = third;
  return resident;
}

// rows_gemm_norm.cu: a GEMM with a single row. The kernel also normalizes this row.
bool has_room_for_norm(const RowsGemm& p, const Gpu& gpu);
void launch_with_norm(const Stream& s, const RowsGemm& p, const RowNorm& norm, DType t);

// rows_gemm_sm90.cu: a GEMM by wgmma. It is used for usual forms with weights along k, if the blocks of
// rows_gemm.cu would not all be resident at the same time.
bool takes_wide_tiles(const RowsGemm& p, const Gpu& gpu);
int wide_tile_rows(const RowsGemm& p, const Gpu& gpu);
void launch_wide_tiles(const Stream& s, const RowsGemm& p, DType t);

// rows_gemm_many.cu: a GEMM of more than 16 rows. It is used if it has more tiles than there are
// multiprocessors. If it has fewer, smaller tiles are faster (256 × 4,096 × 4,096 on an H200: 128 tiles take
// 81 µs, the tiles of rows_gemm.cu 48 µs).
bool are_many_rows(const RowsGemm& p, const Gpu& gpu);
void launch_many_rows(const Stream& s, const RowsGemm& p, DType t, bool along_k);

}  // namespace tg::cuda
