// y = x·w + d, an element's additions in one order however many rows x has. A block takes 16 or 32 outputs,
// which are columns of w, of up to 64 rows. k is cut into 8 slices at fixed places, one for each warp; their
// sums are added in the order of the slices.
//
// Each lane copies what it multiplies into places of its own in shared memory, several chunks of k ahead, so
// nothing but its own copies does it wait for. Weights that no step writes are copied before the step before
// has ended.
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

// ---- 16 bits: lane 4·g + t ----

// along_k: w runs along k in memory, else along n.
template <class S, bool along_k, int groups, int outputs_>
struct TensorRows {
  using type = S;
  static constexpr int outputs = outputs_, rows = 8 * groups;
  static constexpr int blocks = outputs * rows < 2048 ? 2 : 1;  // that a multiprocessor holds
  static constexpr int pieces_w = along_k ? outputs / 8 : 4, pieces_x = groups;
  static constexpr int tiles = outputs / 16;
  static_assert(along_k || outputs == 32);

  const RowsProduct& p;
  const int g = tile::lane_id() / 4, t = tile::lane_id() % 4, i0, j0;
  // Of the lane's first row of x, and of its outputs or its column of w. Beyond the end along n the last
  // outputs are computed again, and not written.
  const unsigned short *x, *w[along_k ? pieces_w : 1];
  float sum[tiles][groups][4] = {};

  __device__ __forceinline__ TensorRows(const RowsProduct& p, int item, int i0, int j0)
      : p(p), i0(i0), j0(j0) {
    x = p.at<unsigned short>(p.x, item) + (i0 + g) * p.row[p.x];
    const unsigned short* first = p.at<unsigned short>(p.w, item);
    if constexpr (along_k)
#pragma unroll
      for (int n = 0; n < pieces_w; ++n) w[n] = first + min(j0 + 8 * n + g, p.n - 1) * p.col[p.w];
    else
      w[0] = first + min(j0 + 8 * t, p.n - 8);
  }

  // f(n, address, whether it is not beyond the end of k) for the lane's pieces of a chunk. Of w: along k
  // eight neighbours of output 8·n + g, else eight outputs of row 8·(g / 2) + 2·n + g % 2. Of x: of row 8·n +
  // g.
  template <class F>
  __device__ __forceinline__ void each_w(int nth, F&& f) const {
    const int k = nth * k_chunk + (along_k ? 8 * t : g / 2 * 8 + g % 2);
#pragma unroll
    for (int n = 0; n < pieces_w; ++n)
      f(n, along_k ? w[along_k ? n : 0] + k : w[0] + (k + 2 * n) * p.row[p.w], k < p.k);
  }
  template <class F>
  __device__ __forceinline__ void each_x(int nth, F&& f) const {
    const int k = nth * k_chunk + 8 * t;
#pragma unroll
    for (int n = 0; n < groups; ++n) f(n, x + 8 * n * p.row[p.x] + k, k < p.k && i0 + 8 * n + g < p.m);
  }

  // w_piece(n) and x_piece(n) are those of a chunk.
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
  static constexpr int outputs = along_k ? 16 : 32, rows = rows_;
  static constexpr int blocks = rows <= (along_k ? 4 : 1) ? 2 : 1;
  static constexpr int pieces_w = along_k ? 4 : 8, of_row = along_k ? 1 : 2, pieces_x = rows * of_row;

  const RowsProduct& p;
  const int g = tile::lane_id() / 8, t = tile::lane_id() % 8, i0, j0;
  const float *x, *w;
  float sum[4 * rows] = {};  // along_k: of outputs 4·n + g over the lane's pieces of k; else of 4·t + n

  __device__ __forceinline__ PlainRows(const RowsProduct& p, int item, int i0, int j0)
      : p(p), i0(i0), j0(j0) {
    x = p.at<float>(p.x, item) + i0 * p.row[p.x] + (along_k ? 4 * t : 8 * g);
    w = p.at<float>(p.w, item) + (along_k ? (j0 + g) * p.col[p.w] + 4 * t : 8 * g * p.row[p.w] + j0 + 4 * t);
  }

  // As above: four neighbours along k of output 4·n + g, or four outputs of row 8·g + n; four of a row of x.
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
constexpr int piece_bytes = 512;     // of 32 lanes
constexpr int copied_ahead = 12288;  // bytes: two blocks of Hopper, one where a block may have 99 KiB
template <class Rows>
constexpr int chunk_bytes = piece_bytes*(Rows::pieces_w + Rows::pieces_x);
template <class Rows>
constexpr int depth_of = copied_ahead / chunk_bytes<Rows>;
template <class Rows>
__host__ __device__ int warp_bytes(int chunks_of_slice) {
  const int chunks = chunks_of_slice < depth_of<Rows> ? chunks_of_slice : depth_of<Rows>;
  const int copies = chunks * chunk_bytes<Rows>, sums = slice_floats<Rows> * 4;
  return copies > sums ? copies : sums;
}

// The warp's slice: chunks [first, end) of k, which the lane copies to shared memory, from `to` on, before it
// needs them. before_x() comes before the first element of x is read; `at_once`: weights are read before
// that.
template <class Rows, class Wait>
__device__ __forceinline__ void multiply_slice(Rows& rows, u32 to, int first, int end, bool at_once,
                                               Wait&& before_x) {
  static_assert(depth_of<Rows> > 0);
  constexpr int depth = depth_of<Rows>, of_x = Rows::pieces_w * piece_bytes;
  to += tile::lane_id() * 16;
  const auto ask_w = [&](int nth, u32 chunk) {
    if (nth < end)
      rows.each_w(nth, [&](int n, const auto* from, bool some) {
        ptx::cp_async_16_of_line(chunk + n * piece_bytes, from, some ? 16 : 0);
      });
  };
  const auto ask_x = [&](int nth, u32 chunk) {
    if (nth < end)
      rows.each_x(nth, [&](int n, const auto* from, bool some) {
        ptx::cp_async_16(chunk + of_x + n * piece_bytes, from, some ? 16 : 0);
      });
    ptx::cp_async_commit();
  };
  const auto ask_first = [&] {
#pragma unroll 1
    for (int n = 0; n < depth; ++n) ask_w(first + n, to + n * chunk_bytes<Rows>);
  };
  if (at_once) ask_first();
  before_x();
  if (!at_once) ask_first();
#pragma unroll 1
  for (int n = 0; n < depth; ++n) ask_x(first + n, to + n * chunk_bytes<Rows>);
  u32 chunk = to;
#pragma unroll 1
  for (int nth = first; nth < end; ++nth) {
    ptx::cp_async_wait<depth - 1>();
    rows.add([&](int n) { return ptx::ld_shared_v4(chunk + n * piece_bytes); },
             [&](int n) { return ptx::ld_shared_v4(chunk + of_x + n * piece_bytes); });
    ask_w(nth + depth, chunk), ask_x(nth + depth, chunk);
    chunk = chunk + chunk_bytes<Rows> < to + depth * chunk_bytes<Rows> ? chunk + chunk_bytes<Rows> : to;
  }
}

template <class Rows>
__global__ void __launch_bounds__(k_slice_threads, Rows::blocks)
    rows_gemm_kernel(const __grid_constant__ RowsProduct p) {
  using S = typename Rows::type;
  TG_DYNAMIC_SHARED(memory, 1024);
  let_product_after_begin();
  const int row_tiles = (p.m + Rows::rows - 1) / Rows::rows, warp = threadIdx.x / 32,
            tile = static_cast<int>(blockIdx.x), nth = row_tiles == 1 ? tile : tile / row_tiles;
  const int i0 = (tile - nth * row_tiles) * Rows::rows, j0 = nth * Rows::outputs;
  const int first = p.slice(warp), end = p.slice(warp + 1), bytes = warp_bytes<Rows>(p.longest_slice());
  const auto sums_of = [&](int slice) { return reinterpret_cast<float*>(memory + slice * bytes); };
  // Numbers of y that a thread writes. What is added to them arrives while the warp multiplies.
  constexpr int V = numbers_of_thread<Rows>;
  const bool writes = V * static_cast<int>(threadIdx.x) < Rows::rows * Rows::outputs;
  const int i = V * threadIdx.x / Rows::outputs, j = V * threadIdx.x % Rows::outputs;
#pragma unroll 1
  for (int item = blockIdx.y; item < p.batches; item += gridDim.y) {
    Rows rows(p, item, i0, j0);
    Added<V> added;
    const bool begins = item == static_cast<int>(blockIdx.y);
    if (writes) p.read_added<S>(added, true, item, i0 + i, j0 + j);
    multiply_slice(rows, ptx::shared_address(memory) + warp * bytes, first, end, begins && p.constant[p.w],
                   [&] {
                     if (begins) wait_for_step_before();
                     if (writes) p.read_added<S>(added, false, item, i0 + i, j0 + j);
                   });
    __syncwarp();  // no lane needs its copies any more
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
      p.write<S>(item, i0 + i, j0 + j, sum, added);
    }
    if (item + static_cast<int>(gridDim.y) < p.batches) __syncthreads();
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
void launch_rows_gemm(const Stream& s, const RowsProduct& p) {
  const i64 tiles =
      (i64{p.m} + Rows::rows - 1) / Rows::rows * ((i64{p.n} + Rows::outputs - 1) / Rows::outputs);
  const unsigned batches = static_cast<unsigned>(p.batches < 65535 ? p.batches : 65535);
  LaunchShape shape{dim3(static_cast<unsigned>(tiles), batches), k_slice_threads,
                    static_cast<std::size_t>(k_slices * warp_bytes<Rows>(p.longest_slice()))};
  shape.early = s.gpu.hopper;
  launch_kernel(s, shape, rows_gemm_kernel<Rows>, p);
}

// The numbers of rows and outputs choose what a block computes, and nothing else. Measured on an H200 with
// 132 multiprocessors: blocks for three quarters of them, with as many rows as leave so many (a block of 64
// rows takes 4.2 µs for k = 768, one of 16 rows 2.6); 16 outputs where each then has one block, or almost
// two, but not if some have two and most have one.
template <class S, bool along_k>
void launch_tensor_rows(const Stream& s, const RowsProduct& p) {
  const auto blocks = [&](int rows, int outputs) {
    return (i64{p.m} + rows - 1) / rows * ((i64{p.n} + outputs - 1) / outputs) * p.batches;
  };
  const auto are_enough = [&](int rows) { return 4 * blocks(rows, 32) >= i64{3} * s.gpu.processors; };
  const auto launch_groups = [&](auto groups) {
    constexpr int rows = 8 * groups.value;
    if constexpr (along_k && rows <= 16) {
      const i64 narrow = blocks(rows, 16);
      if (narrow <= s.gpu.processors || (p.m <= rows && 5 * narrow >= i64{9} * s.gpu.processors))
        return launch_rows_gemm<TensorRows<S, along_k, groups.value, 16>>(s, p);
    }
    launch_rows_gemm<TensorRows<S, along_k, groups.value, 32>>(s, p);
  };
  if (p.m > 32 && are_enough(64)) return launch_groups(std::integral_constant<int, 8>());
  if (p.m > 32 && are_enough(32)) return launch_groups(std::integral_constant<int, 4>());
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
