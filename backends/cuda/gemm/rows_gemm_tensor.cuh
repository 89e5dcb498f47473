// GEMMs of few rows in 16 bits on tensor cores: the work of one warp.
//
// Yᵀ = Wᵀ·Xᵀ: the left operand is 16 outputs, and the right operand is 8 rows of x. Each mma multiplies 16
// adjacent elements along k, as wgmma does (rows_gemm_sm90.cu). Tensor cores add 16 products independently of
// their order, and then add the previous sum. Hopper's two instructions give bitwise identical results.
#pragma once

#include "backends/cuda/gemm/rows_gemm.cuh"
#include "backends/cuda/tile/terms.cuh"

namespace tg::cuda {

using tile::u32;

// Whether nearly all multiprocessors have two blocks of 16 outputs, and none has three.
inline bool are_almost_two(const RowsGemm& p, const Gpu& gpu, int rows) {
  const i64 narrow = p.tiles(rows, 16), processors = gpu.processors;
  return 10 * narrow >= 18 * processors && narrow <= 2 * processors;
}

// Whether blocks with this number of rows have 16 outputs instead of 32. Measured on an H100: 16 outputs are
// faster if each multiprocessor then has one block, or almost all have two. They are slower if some
// multiprocessors have two blocks and most have one. If slices are long, such a mixture is acceptable,
// because the copies in flight are then a small part of a slice.
inline bool computes_16_outputs(const RowsGemm& p, const Gpu& gpu, int rows) {
  const i64 narrow = p.tiles(rows, 16), processors = gpu.processors;
  const bool few = p.m <= rows || rows == 32, is_long = p.longest_slice() > 8;
  return narrow <= processors || (few && are_almost_two(p, gpu, rows)) ||
         (is_long && 10 * narrow >= 14 * processors && narrow <= 2 * processors);
}

// If along_k, w is contiguous along k, otherwise along n. A lane's number is 4·g + t.
template <class S, bool along_k, int groups, int outputs_, Form form_>
struct TensorRows {
  using type = S;
  static constexpr Form form = form_;
  static constexpr int outputs = outputs_, rows = 8 * groups, tiles = outputs / 16;
  static constexpr int pieces_w = along_k ? outputs / 8 : 4;  // of a chunk
  static_assert(along_k || outputs == 32);
  // A stage is two chunks, so a row along k is copied in 128-byte lines. The L2 cache has less throughput for
  // half lines. As many stages are in flight as fit in shared memory. A multiprocessor of Hopper holds two
  // blocks, or one block of 64 rows. GPUs with 99 KiB of shared memory hold one block.
  static constexpr int blocks = rows == 64 ? 1 : 2;  // per multiprocessor
  static constexpr int w_bytes = 2 * pieces_w * piece_bytes, x_bytes = 2 * groups * piece_bytes;
  static constexpr int room(bool hopper) { return rows == 64 ? 24576 : hopper ? 14336 : 12288; }
  static constexpr int x_ahead = room(false) / (w_bytes + x_bytes);
  static constexpr int w_ahead(bool hopper) { return (room(hopper) - x_ahead * x_bytes) / w_bytes; }
  static_assert(x_ahead > 0 && w_ahead(false) >= x_ahead);

  const RowsGemm& p;
  const int g = tile::lane_id() / 4, t = tile::lane_id() % 4;
  // Source of the lane's next copies. Along k, they are 16 bytes in each of the rows lane / 8, lane / 8 + 4,
  // …. Along n, they are outputs in a row of w. Outputs beyond the end of n are not written. They repeat the
  // last outputs or are computed from zeros.
  const unsigned short *x, *w;
  const int x_rows, w_rows;  // number of rows from the lane's first row to the end
  int x_left, w_left;        // elements of k from its next copy to the end
  float sum[tiles][groups][4] = {};

  // Initializes the range of chunks [first, end) of k.
  __device__ __forceinline__ TensorRows(const RowsGemm& p, int item, int i0, int j0, int first, int end)
      : p(p), x_rows(p.m - i0 - copied_row()), w_rows(p.n - j0 - copied_row()) {
    const int k0 = first * k_chunk, k_size = min(end * k_chunk, p.k) - k0;
    x = p.template at<unsigned short, form>(p.x, item) + (i0 + copied_row()) * p.row[p.x] + k0 +
        8 * copied_piece();
    w = p.template at<unsigned short, form>(p.w, item);
    x_left = k_size - 8 * copied_piece();
    if constexpr (along_k) {
      w += (j0 + copied_row()) * p.col[p.w] + k0 + 8 * copied_piece();
      w_left = x_left;
    } else {
      w += (k0 + g) * p.row[p.w] + min(j0 + 8 * t, p.n - 8);
      w_left = k_size - g;
    }
  }

  static __device__ __forceinline__ int copied_row() { return tile::lane_id() / 8; }
  static __device__ __forceinline__ int copied_piece() { return tile::lane_id() % 8; }
  // Offset of 16 bytes of a row along k in a stage. Eight pieces that are read together, one per row, are in
  // different banks.
  static __device__ __forceinline__ u32 place(int row, int piece) {
    return static_cast<u32>(row * 128 + (piece ^ row % 8) * 16);
  }

  // Start the copies of the next stage to `at`.
  __device__ __forceinline__ void ask_w(u32 at) {
    const unsigned short* from = w;
    if constexpr (along_k) {
      at += place(copied_row(), copied_piece());
#pragma unroll
      for (int n = 0; n < outputs / 4; ++n, from += 4 * p.col[p.w])
        ptx::cp_async_16((at ^ n % 2 * 64) + n * 4 * 128, from, w_left > 0 && 4 * n < w_rows ? 16 : 0);
      w += 2 * k_chunk;
    } else {
      // In each chunk, the lane copies eight outputs of rows 8·n + g. Only this lane reads them.
      at += tile::lane_id() * 16;
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
        for (int n = 0; n < pieces_w; ++n)
          ptx::cp_async_16_of_line(at + (chunk * pieces_w + n) * piece_bytes,
                                   from + (chunk * k_chunk + 8 * n) * p.row[p.w],
                                   w_left > chunk * k_chunk + 8 * n ? 16 : 0);
      w += 2 * k_chunk * p.row[p.w];
    }
    w_left -= 2 * k_chunk;
  }
  __device__ __forceinline__ void ask_x(u32 at) {
    const unsigned short* from = x;
    at += place(copied_row(), copied_piece());
#pragma unroll
    for (int n = 0; n < rows / 4; ++n, from += 4 * p.row[p.x])
      ptx::cp_async_16((at ^ n % 2 * 64) + n * 4 * 128, from, x_left > 0 && 4 * n < x_rows ? 16 : 0);
    x += 2 * k_chunk, x_left -= 2 * k_chunk;
  }

  // Bytes of shared memory for a warp's copies.
  static __host__ __device__ int bytes(const RowsGemm& p) {
    const int stages = p.longest_slice() / 2;
    return (stages < p.w_ahead ? stages : p.w_ahead) * w_bytes +
           (stages < x_ahead ? stages : x_ahead) * x_bytes;
  }

  // Computes the sums over `chunks` chunks. A warp's longest slice has `longest` chunks. Weights are copied
  // immediately if they are `constant`. before_x() is called before the first element of x is read.
  template <class Wait>
  __device__ __forceinline__ void multiply(u32 memory, int chunks, int longest, bool constant,
                                           Wait&& before_x) {
    // If all blocks are resident, only a few stages of weights are in flight before x is read. More would
    // delay the previous GEMM's copies of x, which wait in the same queues. If the stages can hold a whole
    // slice, the limit is one stage. Otherwise weights must arrive at memory bandwidth, and the limit is 4
    // KiB or one stage, whichever is larger.
    constexpr int early = w_bytes < 4096 ? 4096 / w_bytes : 1;
    const bool one_by_one = p.resident && longest / 2 <= p.w_ahead;
    const u32 x_memory = memory + min(longest / 2, p.w_ahead) * w_bytes;
    int w_more = chunks / 2, x_more = w_more;  // stages to copy
    if (!constant) wait_for_kernel_before();
    u32 w_at = memory, x_at = x_memory;
#pragma unroll 1
    for (int n = 0; w_at != x_memory && w_more > 0; ++n, --w_more, w_at += w_bytes) {
      if (one_by_one)
        ptx::cp_async_wait<0>();
      else if (n >= early && p.resident)
        ptx::cp_async_wait<early - 1>();
      ask_w(w_at);
      ptx::cp_async_commit();
    }
    before_x();
#pragma unroll 1
    for (int n = 0; n < x_ahead; ++n, x_at += x_bytes) {
      if (x_more > 0) ask_x(x_at), --x_more;
      ptx::cp_async_commit();
    }
    const u32 w_end = x_memory, x_end = x_at;
    w_at = memory, x_at = x_memory;
#pragma unroll 1
    for (; chunks > 0; chunks -= 2) {
      ptx::cp_async_wait<x_ahead - 1>();
      __syncwarp();  // copies of all lanes have arrived
      add_chunk(w_at, x_at, 0);
      add_chunk(w_at, x_at, 1);
      if (x_more > 0) {
        __syncwarp();  // all lanes have read the copies
        ask_x(x_at), --x_more;
        if (w_more > 0) ask_w(w_at), --w_more;
      }
      ptx::cp_async_commit();
      w_at += w_bytes, x_at += x_bytes;
      if (w_at == w_end) w_at = memory;
      if (x_at == x_end) x_at = x_memory;
    }
  }

  // Multiplies a chunk of a stage.
  __device__ __forceinline__ void add_chunk(u32 w_at, u32 x_at, int chunk) {
    x_at += place(tile::lane_id() % 8, 4 * chunk + tile::lane_id() / 8);
    add_w(w_at, chunk, [&](int n, u32(&x)[4]) { ptx::ldmatrix(x, x_at + n * 8 * 128); });
  }
  // Multiplies a chunk for a single row. The row's elements start at x_at, in the order of place_in_row().
  // All lanes read that row. Only lanes of row 0 compute sums that are used.
  __device__ __forceinline__ void add_chunk_of_row(u32 w_at, u32 x_at, int chunk) {
    const uint4 piece = ptx::ld_shared_v4(x_at + (4 * chunk + t) * 16);
    add_w(w_at, chunk,
          [&](int, u32(&x)[4]) { x[0] = piece.x, x[1] = piece.y, x[2] = piece.z, x[3] = piece.w; });
  }
  // Offset in bytes of elements k and k + 1 of a single row. The next two elements are 16 bytes further. k is
  // a multiple of 8.
  static __device__ __forceinline__ int place_in_row(int k) {
    return k / k_chunk * 2 * k_chunk + k % k_chunk / 8 * 4;
  }

  // x(n, words) provides a chunk of row 8·n + g: elements 2t and 2t + 1 of each group of 8.
  template <class X>
  __device__ __forceinline__ void add_w(u32 w_at, int chunk, X&& x) {
    tile::Fragment left[tiles][2];  // 16 outputs and 16 elements of k
    if constexpr (along_k) {
      w_at += place(tile::lane_id() % 16, 4 * chunk + tile::lane_id() / 16);
#pragma unroll
      for (int o = 0; o < tiles; ++o)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          ptx::ldmatrix(left[o][half].x, (w_at ^ half * 32) + o * 16 * 128);
    } else {
      w_at += tile::lane_id() * 16 + chunk * pieces_w * piece_bytes;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint4 piece = ptx::ld_shared_v4(w_at + n * piece_bytes);
        const auto put = [&](int part, u32 words) {
          left[part / 2][n / 2].x[n % 2 * 2 + part % 2] = ptx::transpose_8x8(words);
        };
        put(0, piece.x), put(1, piece.y), put(2, piece.z), put(3, piece.w);
      }
    }
#pragma unroll
    for (int n = 0; n < groups; ++n) {
      u32 right[4];
      x(n, right);
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int o = 0; o < tiles; ++o)
          tile::mma(sum[o][n], left[o][half], right[2 * half], right[2 * half + 1], S());
    }
  }

  // Calls f(row, output, sum) for all sums of the lane.
  template <class F>
  __device__ __forceinline__ void each(F&& f) {
#pragma unroll
    for (int o = 0; o < outputs / 8; ++o)
#pragma unroll
      for (int n = 0; n < groups; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          f(8 * n + 2 * t + e, along_k ? 8 * o + g : g / 2 * 8 + 2 * o + g % 2, sum[o / 2][n][o % 2 * 2 + e]);
  }
};

}  // namespace tg::cuda
