// y = x·w + d, an element's additions in one order however many rows x has. A block takes 16 or 32 outputs,
// which are columns of w, of up to 64 rows. k is cut into 8 slices at fixed places, one for each warp; their
// sums are added in the order of the slices.
//
// Each warp copies what it multiplies into shared memory, several chunks of k ahead, and waits for no copies
// but its own. Weights that no step writes are copied before the step before has ended.
//
// In 16 bits Yᵀ = Wᵀ·Xᵀ on tensor cores: 16 outputs are the left operand, 8 rows of x the right one. The sum
// over k does not mind in which order a product of 16 takes it: where mma expects numbers 2t, 2t + 1, 2t + 8,
// 2t + 9 of a row in lane t of four, the lane gives it neighbours, of which it loads 8 at a time.
#include "backends/cuda/rows_gemm.h"

#include "backends/cuda/kernels/rows_gemm.cuh"
#include "backends/cuda/tile/terms.cuh"

namespace tg::cuda {

namespace {

using tile::u32;
constexpr int k_slice_threads = 32 * k_slices;

constexpr int piece_bytes = 512;  // of 32 lanes

// ---- 16 bits: lane 4·g + t ----

// along_k: w runs along k in memory, else along n.
template <class S, bool along_k, int groups, int outputs_, Form form_>
struct TensorRows {
  using type = S;
  static constexpr Form form = form_;
  static constexpr int outputs = outputs_, rows = 8 * groups, tiles = outputs / 16;
  static constexpr int pieces_w = along_k ? outputs / 8 : 4;  // of a chunk
  static_assert(along_k || outputs == 32);
  // A stage is two chunks, so that copies of rows along k are lines of 128 bytes: with half of a line at a
  // time the second-level cache gives less. As many are on their way as there is room for if a multiprocessor
  // of Hopper holds two blocks, others, with 99 KiB, one; Hopper holds one of 64 rows.
  static constexpr int blocks = rows == 64 ? 1 : 2;  // that a multiprocessor holds
  static constexpr int w_bytes = 2 * pieces_w * piece_bytes, x_bytes = 2 * groups * piece_bytes;
  static constexpr int room(bool hopper) { return rows == 64 ? 24576 : hopper ? 14336 : 12288; }
  static constexpr int x_ahead = room(false) / (w_bytes + x_bytes);
  static constexpr int w_ahead(bool hopper) { return (room(hopper) - x_ahead * x_bytes) / w_bytes; }
  static_assert(x_ahead > 0 && w_ahead(false) >= x_ahead);

  const RowsProduct& p;
  const int g = tile::lane_id() / 4, t = tile::lane_id() % 4;
  // What the lane copies next: 16 bytes of rows lane / 8, lane / 8 + 4, … along k, or outputs of a row of w
  // along n. Of w beyond the end along n the last outputs are computed again, or zeros, and not written.
  const unsigned short *x, *w;
  const int x_rows, w_rows;  // from the lane's first row on
  int x_left, w_left;        // numbers of k, from what it copies next on
  float sum[tiles][groups][4] = {};

  // Chunks [first, end) of k.
  __device__ __forceinline__ TensorRows(const RowsProduct& p, int item, int i0, int j0, int first, int end)
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
      const int k = g / 2 * 8 + g % 2;
      w += (k0 + k) * p.row[p.w] + min(j0 + 8 * t, p.n - 8);
      w_left = k_size - k;
    }
  }

  static __device__ __forceinline__ int copied_row() { return tile::lane_id() / 8; }
  static __device__ __forceinline__ int copied_piece() { return tile::lane_id() % 8; }
  // Where 16 bytes of a row along k lie in a stage. Eight pieces that are read together, of two rows, are in
  // different banks.
  static __device__ __forceinline__ u32 place(int row, int piece) {
    return static_cast<u32>(row * 128 + (piece ^ row % 2 * 4) * 16);
  }

  // Copies of the next stage to `at`.
  __device__ __forceinline__ void ask_w(u32 at) {
    const unsigned short* from = w;
    if constexpr (along_k) {
      at += place(copied_row(), copied_piece());
#pragma unroll
      for (int n = 0; n < outputs / 4; ++n, from += 4 * p.col[p.w])
        ptx::cp_async_16(at + n * 4 * 128, from, w_left > 0 && 4 * n < w_rows ? 16 : 0);
      w += 2 * k_chunk;
    } else {
      // Of each chunk eight outputs of rows 8·(g / 2) + 2·n + g % 2, which the lane reads itself.
      at += tile::lane_id() * 16;
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk)
#pragma unroll
        for (int n = 0; n < pieces_w; ++n)
          ptx::cp_async_16_of_line(at + (chunk * pieces_w + n) * piece_bytes,
                                   from + (chunk * k_chunk + 2 * n) * p.row[p.w],
                                   w_left > chunk * k_chunk ? 16 : 0);
      w += 2 * k_chunk * p.row[p.w];
    }
    w_left -= 2 * k_chunk;
  }
  __device__ __forceinline__ void ask_x(u32 at) {
    const unsigned short* from = x;
    at += place(copied_row(), copied_piece());
#pragma unroll
    for (int n = 0; n < rows / 4; ++n, from += 4 * p.row[p.x])
      ptx::cp_async_16(at + n * 4 * 128, from, x_left > 0 && 4 * n < x_rows ? 16 : 0);
    x += 2 * k_chunk, x_left -= 2 * k_chunk;
  }

  // Bytes of a warp's copies.
  static __host__ __device__ int bytes(const RowsProduct& p) {
    const int stages = p.longest_slice() / 2;
    return (stages < p.w_ahead ? stages : p.w_ahead) * w_bytes +
           (stages < x_ahead ? stages : x_ahead) * x_bytes;
  }

  // The sums over `chunks` chunks, of which a warp's longest slice has `longest`. Weights are copied at once
  // if they are `constant`; before_x() comes before the first element of x is read.
  template <class Wait>
  __device__ __forceinline__ void multiply(u32 memory, int chunks, int longest, bool constant,
                                           Wait&& before_x) {
    // Before x is read, few stages of weights are on their way at a time: more would hold up x of the product
    // before, which waits in the same queues. One, or 4 KiB where a slice does not fit and they have to come
    // at the rate of memory.
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
      __syncwarp();  // copies of all lanes are there
      add_chunk(w_at, x_at, 0);
      add_chunk(w_at, x_at, 1);
      if (x_more > 0) {
        __syncwarp();  // no lane needs them any more
        ask_x(x_at), --x_more;
        if (w_more > 0) ask_w(w_at), --w_more;
      }
      ptx::cp_async_commit();
      w_at += w_bytes, x_at += x_bytes;
      if (w_at == w_end) w_at = memory;
      if (x_at == x_end) x_at = x_memory;
    }
  }

  // A chunk of a stage.
  __device__ __forceinline__ void add_chunk(u32 w_at, u32 x_at, int chunk) {
    const u32 of_lane = place(g, 4 * chunk + t);
    if constexpr (along_k)
      w_at += of_lane;
    else
      w_at += tile::lane_id() * 16 + chunk * pieces_w * piece_bytes;
    x_at += of_lane;
    constexpr int w_step = along_k ? 8 * 128 : piece_bytes;
    add([&](int n) { return ptx::ld_shared_v4(w_at + n * w_step); },
        [&](int n) { return ptx::ld_shared_v4(x_at + n * 8 * 128); });
  }

  // w_piece(n): of output 8·n + g, or of the rows above; x_piece(n): of row 8·n + g.
  template <class W, class X>
  __device__ __forceinline__ void add(W&& w_piece, X&& x_piece) {
    u32 left[2 * tiles][4] = {};  // of output `output(n, g)`: words 2t, 2t + 1, … along k
    if constexpr (along_k) {
#pragma unroll
      for (int n = 0; n < pieces_w; ++n) {
        const uint4 piece = w_piece(n);
        left[n][0] = piece.x, left[n][1] = piece.y, left[n][2] = piece.z, left[n][3] = piece.w;
      }
    } else {
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        const uint4 piece = w_piece(word);
        left[0][word] = ptx::transpose_8x8(piece.x), left[1][word] = ptx::transpose_8x8(piece.y);
        left[2][word] = ptx::transpose_8x8(piece.z), left[3][word] = ptx::transpose_8x8(piece.w);
      }
    }
#pragma unroll
    for (int n = 0; n < groups; ++n) {
      const uint4 right = x_piece(n);
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int o = 0; o < tiles; ++o) {
          const tile::Fragment a{left[2 * o][2 * half], left[2 * o + 1][2 * half], left[2 * o][2 * half + 1],
                                 left[2 * o + 1][2 * half + 1]};
          tile::mma(sum[o][n], a, half ? right.z : right.x, half ? right.w : right.y, S());
        }
    }
  }

  // f(row, output, sum) for all that the lane has.
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

// ---- f32: lane 8·g + t ----

template <bool along_k, int rows_>
struct PlainRows {
  using type = float;
  static constexpr Form form = Form::any;
  static constexpr int outputs = along_k ? 16 : 32, rows = rows_;
  static constexpr int blocks = rows <= (along_k ? 4 : 1) ? 2 : 1;
  static constexpr int pieces_w = along_k ? 4 : 8, of_row = along_k ? 1 : 2, pieces_x = rows * of_row;
  static constexpr int x_offset = pieces_w * piece_bytes, chunk_bytes = x_offset + pieces_x * piece_bytes;
  static constexpr int depth = 12288 / chunk_bytes;  // chunks on their way
  static_assert(depth > 0);

  const RowsProduct& p;
  const int g = tile::lane_id() / 8, t = tile::lane_id() % 8, i0, j0, first;
  const float *x, *w;
  float sum[4 * rows] = {};  // along_k: of outputs 4·n + g over the lane's pieces of k; else of 4·t + n

  __device__ __forceinline__ PlainRows(const RowsProduct& p, int item, int i0, int j0, int first, int)
      : p(p), i0(i0), j0(j0), first(first) {
    x = p.at<float>(p.x, item) + i0 * p.row[p.x] + (along_k ? 4 * t : 8 * g);
    w = p.at<float>(p.w, item) + (along_k ? (j0 + g) * p.col[p.w] + 4 * t : 8 * g * p.row[p.w] + j0 + 4 * t);
  }

  static constexpr int w_ahead(bool) { return depth; }
  static __host__ __device__ int bytes(const RowsProduct& p) {
    return (p.longest_slice() < depth ? p.longest_slice() : depth) * chunk_bytes;
  }

  // As above. Each lane copies what it multiplies into places of its own.
  template <class Wait>
  __device__ __forceinline__ void multiply(u32 to, int chunks, int, bool constant, Wait&& before_x) {
    to += tile::lane_id() * 16;
    const int end = first + chunks;
    const auto ask_w = [&](int nth, u32 at) {
      if (nth < end)
        each_w(nth, [&](int n, const float* from, bool some) {
          ptx::cp_async_16_of_line(at + n * piece_bytes, from, some ? 16 : 0);
        });
    };
    const auto ask_x = [&](int nth, u32 at) {
      if (nth < end)
        each_x(nth, [&](int n, const float* from, bool some) {
          ptx::cp_async_16(at + x_offset + n * piece_bytes, from, some ? 16 : 0);
        });
      ptx::cp_async_commit();
    };
    if (!constant) wait_for_kernel_before();
#pragma unroll 1
    for (int n = 0; n < depth; ++n) ask_w(first + n, to + n * chunk_bytes);
    before_x();
#pragma unroll 1
    for (int n = 0; n < depth; ++n) ask_x(first + n, to + n * chunk_bytes);
    u32 at = to;
#pragma unroll 1
    for (int nth = first; nth < end; ++nth) {
      ptx::cp_async_wait<depth - 1>();
      add([&](int n) { return ptx::ld_shared_v4(at + n * piece_bytes); },
          [&](int n) { return ptx::ld_shared_v4(at + x_offset + n * piece_bytes); });
      ask_w(nth + depth, at), ask_x(nth + depth, at);
      at = at + chunk_bytes < to + depth * chunk_bytes ? at + chunk_bytes : to;
    }
  }

  // f(n, address, whether it is not beyond the end of k) for the lane's pieces of a chunk: four neighbours
  // along k of output 4·n + g, or four outputs of row 8·g + n; four of a row of x.
  template <class F>
  __device__ __forceinline__ void each_w(int nth, F&& f) const {
    const int k0 = nth * k_chunk;
#pragma unroll
    for (int n = 0; n < pieces_w; ++n)
      if constexpr (along_k)
        f(n, w + 4 * n * p.col[p.w] + k0, k0 + 4 * t < p.k && j0 + 4 * n + g < p.n);
      else
        f(n, w + (k0 + n) * p.row[p.w], k0 + 8 * g + n < p.k && j0 + 4 * t < p.n);
  }
  template <class F>
  __device__ __forceinline__ void each_x(int nth, F&& f) const {
    const int k0 = nth * k_chunk;
#pragma unroll
    for (int n = 0; n < pieces_x; ++n) {
      const int i = n / of_row, part = n % of_row;
      f(n, x + i * p.row[p.x] + k0 + 4 * part,
        i0 + i < p.m && k0 + (along_k ? 4 * t : 8 * g + 4 * part) < p.k);
    }
  }

  template <class W, class X>
  __device__ __forceinline__ void add(W&& w_piece, X&& x_piece) {
    uint4 left[pieces_w];
#pragma unroll
    for (int n = 0; n < pieces_w; ++n) left[n] = w_piece(n);
#pragma unroll
    for (int i = 0; i < rows; ++i) {
      uint4 right[of_row];
#pragma unroll
      for (int part = 0; part < of_row; ++part) right[part] = x_piece(i * of_row + part);
#pragma unroll
      for (int n = 0; n < pieces_w; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& to = sum[4 * i + (along_k ? n : e)];
          to = fmaf(number_of(left[n], e),
                    along_k ? number_of(right[0], e) : number_of(right[along_k ? 0 : n / 4], n % 4), to);
        }
    }
  }

  template <class F>
  __device__ __forceinline__ void each(F&& f) {
    fold<along_k ? 4 : 16, 4 * rows>(0, true, f);
  }

 private:
  // Adds the first `count` sums over the lanes that have the same outputs, in steps of `by` lanes and less.
  // Of two lanes each keeps half of the sums, from number `from` on, or one of them (`own`) the last one.
  template <int by, int count, class F>
  __device__ __forceinline__ void fold(int from, bool own, F& f) {
    if constexpr (by == (along_k ? 0 : 4)) {
#pragma unroll
      for (int i = 0; i < count; ++i)
        if (const int nth = from + i; own) f(nth / 4, along_k ? nth % 4 * 4 + g : 4 * t + nth % 4, sum[i]);
    } else {
      const bool upper = tile::lane_id() & by;
      if constexpr (count == 1) {
        sum[0] += __shfl_xor_sync(~0u, sum[0], by);
        fold<by / 2, 1>(from, own && !upper, f);
      } else {
        constexpr int half = count / 2;
#pragma unroll
        for (int i = 0; i < half; ++i) {
          const float keep = upper ? sum[i + half] : sum[i], give = upper ? sum[i] : sum[i + half];
          sum[i] = keep + __shfl_xor_sync(~0u, give, by);
        }
        fold<by / 2, half>(from + (upper ? half : 0), own, f);
      }
    }
  }
  static __device__ __forceinline__ float number_of(const uint4& v, int n) {
    return __uint_as_float(n == 0 ? v.x : n == 1 ? v.y : n == 2 ? v.z : v.w);
  }
};

// Sums of a slice in shared memory, [rows, outputs] with space between rows.
template <class Rows>
constexpr int shared_row = Rows::outputs + 4;
template <class Rows>
constexpr int slice_floats = shared_row<Rows>* Rows::rows;
// Numbers of y, neighbours in a row, that a thread writes.
template <class Rows>
constexpr int numbers_of_thread =
    Rows::rows* Rows::outputs <= 2 * k_slice_threads ? 2 : Rows::rows* Rows::outputs / k_slice_threads;

// A warp's part of shared memory: chunks that are on their way, and at last its sums.
template <class Rows>
__host__ __device__ int warp_bytes(const RowsProduct& p) {
  const int copies = Rows::bytes(p), sums = slice_floats<Rows> * 4;
  return copies > sums ? copies : sums;
}

template <class Rows>
__global__ void __launch_bounds__(k_slice_threads, Rows::blocks)
    rows_gemm_kernel(const __grid_constant__ RowsProduct p) {
  using S = typename Rows::type;
  constexpr Form form = Rows::form;
  TG_DYNAMIC_SHARED(memory, 1024);
  let_next_kernel_begin();
  const int row_tiles = (p.m + Rows::rows - 1) / Rows::rows, warp = threadIdx.x / 32,
            tile = static_cast<int>(blockIdx.x), nth = row_tiles == 1 ? tile : tile / row_tiles;
  const int i0 = (tile - nth * row_tiles) * Rows::rows, j0 = nth * Rows::outputs;
  const int first = p.slice(warp), end = p.slice(warp + 1), longest = p.longest_slice(),
            bytes = warp_bytes<Rows>(p);
  const auto sums_of = [&](int slice) { return reinterpret_cast<float*>(memory + slice * bytes); };
  // Numbers of y that a thread writes. What is added to them arrives while the warp multiplies.
  constexpr int V = numbers_of_thread<Rows>;
  const bool writes = V * static_cast<int>(threadIdx.x) < Rows::rows * Rows::outputs;
  const int i = V * threadIdx.x / Rows::outputs, j = V * threadIdx.x % Rows::outputs;
  const int items = form == Form::any ? p.batches : 1;
#pragma unroll 1
  for (int item = blockIdx.y; item < items; item += gridDim.y) {
    Rows rows(p, item, i0, j0, first, end);
    Added<V> added;
    if (writes) p.read_added<S, form>(added, true, item, i0 + i, j0 + j);
    rows.multiply(ptx::shared_address(memory) + warp * bytes, end - first, longest, p.constant[p.w], [&] {
      wait_for_kernel_before();
      if (writes) p.read_added<S, form>(added, false, item, i0 + i, j0 + j);
    });
    __syncwarp();  // no lane needs copies any more
    rows.each([&](int i, int j, float sum) { sums_of(warp)[i * shared_row<Rows> + j] = sum; });
    __syncthreads();
    if (writes) {
      const int at = i * shared_row<Rows> + j;
      float sum[V];
#pragma unroll
      for (int slice = 0; slice < k_slices; ++slice)
#pragma unroll
        for (int v = 0; v < V; v += 2) {
          const float2 two = *reinterpret_cast<const float2*>(sums_of(slice) + at + v);
          sum[v] = slice == 0 ? two.x : sum[v] + two.x;
          sum[v + 1] = slice == 0 ? two.y : sum[v + 1] + two.y;
        }
      p.write<S, form>(item, i0 + i, j0 + j, sum, added);
    }
    if (item + static_cast<int>(gridDim.y) < items) __syncthreads();
  }
}

// x row after row, for loads of 16 bytes.
template <class S>
__global__ void __launch_bounds__(256) copy_rows_of_x(S* to, const __grid_constant__ RowsProduct p) {
  const i64 i = i64{blockIdx.x} * blockDim.x + threadIdx.x, each = i64{p.m} * p.k;
  if (i >= each * p.batches) return;
  const i64 row = i % each / p.k, column = i % p.k;
  to[i] = p.at<S>(p.x, static_cast<int>(i / each))[row * p.row[p.x] + column * p.col[p.x]];
}

template <class Rows>
void launch_rows_gemm(const Stream& s, RowsProduct p) {
  p.w_ahead = Rows::w_ahead(s.gpu.hopper);
  const i64 tiles =
      (i64{p.m} + Rows::rows - 1) / Rows::rows * ((i64{p.n} + Rows::outputs - 1) / Rows::outputs);
  const unsigned batches = static_cast<unsigned>(p.batches < 65535 ? p.batches : 65535);
  const i64 blocks = tiles * batches, processors = s.gpu.processors;
  LaunchShape shape{dim3(static_cast<unsigned>(tiles), batches), k_slice_threads,
                    static_cast<std::size_t>(k_slices * warp_bytes<Rows>(p))};
  shape.early = s.gpu.hopper;
  p.resident = shape.early && blocks <= 2 * processors;
  // A product and the next one share the multiprocessors; a third one would get in their way.
  constexpr std::size_t third = 77824;
  if (p.resident && 2 * blocks > processors && shape.shared < third) shape.shared = third;
  launch_kernel(s, shape, rows_gemm_kernel<Rows>, p);
}

template <class S, int groups, int outputs>
void launch_form_of_rows(const Stream& s, const RowsProduct& p) {
  switch (form_of(p)) {
    case Form::any:
      return launch_rows_gemm<TensorRows<S, true, groups, 32, Form::any>>(s, p);
    case Form::usual:
      return launch_rows_gemm<TensorRows<S, true, groups, outputs, Form::usual>>(s, p);
    case Form::usual_gelu:
      return launch_rows_gemm<TensorRows<S, true, groups, outputs, Form::usual_gelu>>(s, p);
    case Form::usual_gelu_tanh:
      return launch_rows_gemm<TensorRows<S, true, groups, outputs, Form::usual_gelu_tanh>>(s, p);
  }
}

// The numbers of rows and outputs choose what a block computes, and nothing else. Measured on an H200 with
// 132 multiprocessors: as many rows as leave blocks for three quarters of them; 16 outputs where each then
// has one block, or almost two, but not if some have two and most have one. If slices are long, so that the
// copies on their way are a small part of them, some may.
template <class S, bool along_k>
void launch_tensor_rows(const Stream& s, const RowsProduct& p) {
  const i64 processors = s.gpu.processors;
  const auto blocks = [&](int rows, int outputs) {
    return (i64{p.m} + rows - 1) / rows * ((i64{p.n} + outputs - 1) / outputs) * p.batches;
  };
  const auto are_enough = [&](int rows) { return 4 * blocks(rows, 32) >= 3 * processors; };
  const auto are_almost_two = [&](int rows) {
    return along_k && 10 * blocks(rows, 16) >= 18 * processors && blocks(rows, 16) <= 2 * processors;
  };
  const auto launch_groups = [&](auto number) {
    constexpr int groups = number.value, rows = 8 * groups;
    if constexpr (!along_k) {
      launch_rows_gemm<TensorRows<S, false, groups, 32, Form::any>>(s, p);
    } else {
      if constexpr (rows < 64) {
        const i64 narrow = blocks(rows, 16);
        const bool few = p.m <= rows || rows == 32, is_long = p.longest_slice() > 8;
        if (narrow <= processors || (few && are_almost_two(rows)) ||
            (is_long && 10 * narrow >= 14 * processors && narrow <= 2 * processors))
          return launch_form_of_rows<S, groups, 16>(s, p);
      }
      launch_form_of_rows<S, groups, 32>(s, p);
    }
  };
  if (p.m > 32 && are_enough(64) && s.gpu.hopper) return launch_groups(std::integral_constant<int, 8>());
  if ((p.m > 32 && are_enough(32)) ||
      (p.m > 16 && (are_almost_two(32) || 10 * blocks(32, 32) >= 18 * processors)))
    return launch_groups(std::integral_constant<int, 4>());
  if (p.m > 8) return launch_groups(std::integral_constant<int, 2>());
  launch_groups(std::integral_constant<int, 1>());
}

template <class S, bool along_k>
void launch_for_rows(const Stream& s, const RowsProduct& p) {
  if constexpr (sizeof(S) == 4) {
    if (p.m == 1) return launch_rows_gemm<PlainRows<along_k, 1>>(s, p);
    if (p.m <= 4) return launch_rows_gemm<PlainRows<along_k, 4>>(s, p);
    launch_rows_gemm<PlainRows<along_k, 8>>(s, p);
  } else {
    if (are_many_rows(p, s.gpu)) return launch_many_rows(s, p, S(), along_k);
    launch_tensor_rows<S, along_k>(s, p);
  }
}

bool is_aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

// Whether all that is reached from data in steps of `stride` and along the batch is aligned to 16 bytes.
bool in_pieces(const RowsProduct& p, int which, i64 stride, i64 count) {
  const Strides& batch = p.batch[which];
  bool fits = is_aligned(p.data[which]) && stride % count == 0;
  for (int a = 0; a < batch.rank; ++a) fits = fits && (batch.size[a] == 1 || batch.stride[a] % count == 0);
  return fits;
}

// How many neighbours along n of all that is added and written can be reached at once: 8, 4, 2 or 1.
int together_in(const RowsProduct& p) {
  const auto fit = [&](int count) {
    bool all = p.n % count == 0 && is_aligned(p.sum) && is_aligned(p.result);
    for (const int which : {RowsProduct::d, RowsProduct::e, RowsProduct::y})
      all = all && (!p.data[which] ||
                    (p.col[which] == 1 && in_pieces(p, which, p.m == 1 ? 0 : p.row[which], count)));
    return all;
  };
  for (int count = 8; count > 1; count /= 2)
    if (fit(count)) return count;
  return 1;
}

// Operands with strides along the product's axes; a broadcast axis has stride 0.
RowsProduct rows_product_of(const Call& call, const RowsContext* context = nullptr) {
  const Shape& out = call.out[0].layout.shape;
  const int r = out.size();
  RowsProduct p{};
  p.m = static_cast<int>(out[r - 2]), p.n = static_cast<int>(out[r - 1]);
  p.k = static_cast<int>(call.in[0].layout.shape.back());
  p.batches = 1;
  for (int a = 0; a + 2 < r; ++a) p.batches *= static_cast<int>(out[a]);
  const auto put = [&](int which, const Arg& x, i64 rows, i64 columns) {
    const Layout& l = x.layout;
    const auto stride = [&](int axis, i64 size) -> i64 {
      const int own = axis - (r - l.rank());
      return own < 0 || (l.shape[own] == 1 && size != 1) ? 0 : l.strides[own];
    };
    p.data[which] = x.data;
    p.batch[which].rank = r - 2;
    for (int a = 0; a + 2 < r; ++a)
      p.batch[which].size[a] = out[a], p.batch[which].stride[a] = stride(a, out[a]);
    p.row[which] = stride(r - 2, rows), p.col[which] = stride(r - 1, columns);
    p.constant[which] = context && !context->written.overlaps(x);
  };
  put(RowsProduct::x, call.in[0], p.m, p.k), put(RowsProduct::w, call.in[1], p.k, p.n);
  put(RowsProduct::y, call.out[0], p.m, p.n);
  const bool sums = context && !context->sum.empty();
  if (sums) {
    put(RowsProduct::d, context->sum[0], p.m, p.n), put(RowsProduct::e, context->sum[1], p.m, p.n);
    if (context->sum[2].data != call.out[0].data) p.sum = context->sum[2].data;
  } else if (call.in.size() == 3) {
    put(RowsProduct::d, call.in[2], p.m, p.n);
  }
  if (context && context->function != RowsContext::none) {
    p.function = context->function, p.result = context->result;
    if (p.result == call.out[0].data) p.data[p.y] = nullptr;
  }
  p.wide = call.out[0].dtype != call.in[0].dtype;
  p.together = together_in(p);
  return p;
}

bool x_in_pieces(const RowsProduct& p, DType t) {
  const i64 count = 16 / static_cast<i64>(size_of(t));
  return p.col[p.x] == 1 && in_pieces(p, p.x, p.m == 1 ? 0 : p.row[p.x], count);
}
bool is_along_k(const RowsProduct& p, DType t) {
  return p.row[p.w] == 1 && p.k % (16 / static_cast<int>(size_of(t))) == 0;
}

}  // namespace

bool is_for_rows_gemm(const Call& call) {
  const DType t = call.in[0].dtype;
  const Shape& out = call.out[0].layout.shape;
  const i64 k = call.in[0].layout.shape.back();
  if (t == DType::f64 || k == 0) return false;
  const i64 count = 16 / static_cast<i64>(size_of(t)), most = 0x7fffffff;
  i64 rows = 1;
  for (int a = 0; a + 1 < out.size(); ++a) rows = rows > most ? rows : rows * out[a];
  if (rows > most || out.back() > most || k > most) return false;
  const RowsProduct p = rows_product_of(call);
  if (is_along_k(p, t)) return in_pieces(p, p.w, p.col[p.w], count);
  return p.col[p.w] == 1 && p.k % 8 == 0 && p.n % count == 0 && in_pieces(p, p.w, p.row[p.w], count);
}

bool is_faster_by_rows_gemm(const Call& call) {
  const DType t = call.in[0].dtype;
  if (!call.gpu.hopper || (t != DType::bf16 && t != DType::f16) || !is_for_rows_gemm(call)) return false;
  const RowsProduct p = rows_product_of(call);
  if (p.batches != 1 || !is_along_k(p, t) || !x_in_pieces(p, t)) return false;
  const int processors = call.gpu.processors;
  if (p.k > 4096 && p.n < 16 * processors) return false;  // cuBLASLt cuts k where there are few outputs
  return p.m <= 8 || (p.m <= 16 && p.n <= 128 * processors) || (p.m <= 64 && p.n <= 32 * processors);
}

std::size_t rows_gemm_workspace(const Call& call) {
  const RowsProduct p = rows_product_of(call);
  return x_in_pieces(p, call.in[0].dtype)
             ? 0
             : static_cast<std::size_t>(i64{p.m} * p.k * p.batches) * size_of(call.in[0].dtype);
}

void rows_gemm(const Stream& s, const Call& call, const RowsContext& context) {
  RowsProduct p = rows_product_of(call, &context);
  if (p.m == 0 || p.n == 0 || p.batches == 0) return;
  const DType t = call.in[0].dtype;
  const bool along_k = is_along_k(p, t);
  const auto launch = [&](auto zero) {
    using S = decltype(zero);
    if (!x_in_pieces(p, t)) {
      launch_kernel(s, {blocks_for(i64{p.m} * p.k * p.batches, 256), 256}, copy_rows_of_x<S>,
                    reinterpret_cast<S*>(s.workspace), p);
      p.data[p.x] = s.workspace, p.row[p.x] = p.k, p.col[p.x] = 1, p.constant[p.x] = false;
      i64 stride = i64{p.m} * p.k;
      Strides& batch = p.batch[p.x];
      for (int a = batch.rank - 1; a >= 0; --a) batch.stride[a] = stride, stride *= batch.size[a];
    }
    along_k ? launch_for_rows<S, true>(s, p) : launch_for_rows<S, false>(s, p);
  };
  switch (t) {
    case DType::f32:
      return launch(float());
    case DType::bf16:
      return launch(__nv_bfloat16());
    default:
      return launch(__half());
  }
}

std::string rows_gemm_choice(const Call& call, const RowsContext& context) {
  const RowsProduct p = rows_product_of(call);
  const DType t = call.in[0].dtype;
  std::string s = std::string(t == DType::f32 ? "plain multiply-adds" : "tensor cores") +
                  ", rows alone, 8 slices of k, weights along " + (is_along_k(p, t) ? "k" : "n");
  if (t != DType::f32 && are_many_rows(p, call.gpu)) s += ", tiles of 64 rows and 128 outputs";
  if (!context.sum.empty()) s += ", with the sum that is added";
  if (context.function != RowsContext::none)
    s += context.function == RowsContext::gelu ? ", with gelu" : ", with gelu_tanh";
  return s;
}

}  // namespace tg::cuda
