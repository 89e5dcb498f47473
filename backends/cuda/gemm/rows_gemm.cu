// Computes y = x·w + d. The summation order of an element is the same for any number of rows of x. A block
// computes 16 or 32 outputs (columns of w) for up to 64 rows. k is split into 8 slices at fixed positions.
// Each warp computes one slice. The sums of the first four slices are added in order, and so are the sums of
// the last four. Then the two results are added.
//
// Each warp copies its operands into shared memory, several chunks of k ahead. It waits only for its own
// copies. Weights that no step writes are copied before the previous kernel has finished.
//
// 16-bit types use TensorRows (rows_gemm_tensor.cuh), and f32 uses FMAs.
#include "backends/cuda/gemm/matmul.h"

#include "backends/cuda/gemm/rows_gemm_tensor.cuh"

namespace tg::cuda {

namespace {

// Rows in f32. A lane's number is 8·g + t.
template <bool along_k, int rows_>
struct PlainRows {
  using type = float;
  static constexpr Form form = Form::any;
  static constexpr int outputs = along_k ? 16 : 32, rows = rows_;
  static constexpr int blocks = rows <= (along_k ? 4 : 1) ? 2 : 1;
  static constexpr int pieces_w = along_k ? 4 : 8, of_row = along_k ? 1 : 2, pieces_x = rows * of_row;
  static constexpr int x_offset = pieces_w * piece_bytes, chunk_bytes = x_offset + pieces_x * piece_bytes;
  static constexpr int depth = 12288 / chunk_bytes;  // number of chunks in flight
  static_assert(depth > 0);

  const RowsGemm& p;
  const int g = tile::lane_id() / 8, t = tile::lane_id() % 8, i0, j0, first;
  const float *x, *w;
  // If along_k, partial sums of outputs 4·n + g over the lane's pieces of k. Otherwise, sums of outputs 4·t +
  // n.
  float sum[4 * rows] = {};

  __device__ __forceinline__ PlainRows(const RowsGemm& p, int item, int i0, int j0, int first, int)
      : p(p), i0(i0), j0(j0), first(first) {
    x = p.at<float>(p.x, item) + i0 * p.row[p.x] + (along_k ? 4 * t : 8 * g);
    w = p.at<float>(p.w, item) + (along_k ? (j0 + g) * p.col[p.w] + 4 * t : 8 * g * p.row[p.w] + j0 + 4 * t);
  }

  static constexpr int w_ahead(bool) { return depth; }
  static __host__ __device__ int bytes(const RowsGemm& p) {
    return (p.longest_slice() < depth ? p.longest_slice() : depth) * chunk_bytes;
  }

  // Multiplies as TensorRows::multiply does. Each lane copies its own operands into its own part of shared
  // memory.
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

  // Calls f(n, address, is_inside) for the lane's pieces of a chunk. is_inside states whether the piece is
  // within k. A piece of w is four adjacent elements along k of output 4·n + g, or four outputs of row 8·g +
  // n. A piece of x is four elements of a row.
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
  // Reduces the first `count` sums over the lanes that have the same outputs, with lane distances `by`, by /
  // 2, …. Each lane of a pair keeps half of the sums, starting at index `from`. The lane with `own` keeps the
  // last sum.
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

// Sums of a slice in shared memory, [rows, outputs], with padding between rows.
template <class Rows>
constexpr int shared_row = Rows::outputs + 4;
template <class Rows>
constexpr int slice_floats = shared_row<Rows>* Rows::rows;
// Number of adjacent elements of a row of y that a thread writes.
template <class Rows>
constexpr int numbers_of_thread =
    Rows::rows* Rows::outputs <= 2 * k_slice_threads ? 2 : Rows::rows* Rows::outputs / k_slice_threads;

// A warp's part of shared memory: first the chunks in flight, later its sums.
template <class Rows>
__host__ __device__ int warp_bytes(const RowsGemm& p) {
  const int copies = Rows::bytes(p), sums = slice_floats<Rows> * 4;
  return copies > sums ? copies : sums;
}

template <class Rows>
__global__ void __launch_bounds__(k_slice_threads, Rows::blocks)
    rows_gemm_kernel(const __grid_constant__ RowsGemm p) {
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
  // Number of elements of y that a thread writes. Their addends are loaded while the warp multiplies.
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
    __syncwarp();  // all lanes have read the copies
    rows.each([&](int i, int j, float sum) { sums_of(warp)[i * shared_row<Rows> + j] = sum; });
    __syncthreads();
    if (writes) {
      const int at = i * shared_row<Rows> + j;
      float sum[V], half[V];
#pragma unroll
      for (int slice = 0; slice < k_slices; ++slice)
#pragma unroll
        for (int v = 0; v < V; v += 2) {
          const float2 two = *reinterpret_cast<const float2*>(sums_of(slice) + at + v);
          add_slice(slice, two.x, half[v], sum[v]), add_slice(slice, two.y, half[v + 1], sum[v + 1]);
        }
      p.write<S, form>(item, i0 + i, j0 + j, sum, added);
    }
    if (item + static_cast<int>(gridDim.y) < items) __syncthreads();
  }
}

// Copies x to contiguous rows, for 16-byte loads.
template <class S>
__global__ void __launch_bounds__(256) copy_rows_of_x(S* to, const __grid_constant__ RowsGemm p) {
  const i64 i = i64{blockIdx.x} * blockDim.x + threadIdx.x, each = i64{p.m} * p.k;
  if (i >= each * p.batches) return;
  const i64 row = i % each / p.k, column = i % p.k;
  to[i] = p.at<S>(p.x, static_cast<int>(i / each))[row * p.row[p.x] + column * p.col[p.x]];
}

template <class Rows>
void launch_rows_gemm(const Stream& s, RowsGemm p) {
  p.w_ahead = Rows::w_ahead(s.gpu.hopper);
  const i64 tiles = p.tiles(Rows::rows, Rows::outputs) / p.batches;
  const unsigned batches = static_cast<unsigned>(p.batches < 65535 ? p.batches : 65535);
  LaunchShape shape{dim3(static_cast<unsigned>(tiles), batches), k_slice_threads,
                    static_cast<std::size_t>(k_slices * warp_bytes<Rows>(p))};
  p.resident = begins_early(shape, tiles * batches, s.gpu);
  launch_kernel(s, shape, rows_gemm_kernel<Rows>, p);
}

template <class S, int groups, int outputs>
void launch_form_of_rows(const Stream& s, const RowsGemm& p) {
  if (!is_usual(p)) return launch_rows_gemm<TensorRows<S, true, groups, 32, Form::any>>(s, p);
  with_usual_form(
      p, [&](auto form) { launch_rows_gemm<TensorRows<S, true, groups, outputs, form.value>>(s, p); });
}

// Results do not depend on the numbers of rows and outputs per block. On an H100 with 132 multiprocessors,
// more rows per block are faster if three quarters of the multiprocessors still have a block.
template <class S, bool along_k>
void launch_tensor_rows(const Stream& s, const RowsGemm& p) {
  const i64 processors = s.gpu.processors;
  const auto are_enough = [&](int rows) { return 4 * p.tiles(rows, 32) >= 3 * processors; };
  const auto launch_groups = [&](auto number) {
    constexpr int groups = number.value;
    if constexpr (!along_k) {
      launch_rows_gemm<TensorRows<S, false, groups, 32, Form::any>>(s, p);
    } else {
      if constexpr (groups < 8)
        if (computes_16_outputs(p, s.gpu, 8 * groups)) return launch_form_of_rows<S, groups, 16>(s, p);
      launch_form_of_rows<S, groups, 32>(s, p);
    }
  };
  if (p.m > 32 && are_enough(64) && s.gpu.hopper) return launch_groups(std::integral_constant<int, 8>());
  if ((p.m > 32 && are_enough(32)) ||
      (p.m > 16 && ((along_k && are_almost_two(p, s.gpu, 32)) || 10 * p.tiles(32, 32) >= 18 * processors)))
    return launch_groups(std::integral_constant<int, 4>());
  if (p.m > 8) return launch_groups(std::integral_constant<int, 2>());
  launch_groups(std::integral_constant<int, 1>());
}

template <class S, bool along_k>
void launch_for_rows(const Stream& s, const RowsGemm& p, DType t) {
  if constexpr (sizeof(S) == 4) {
    if (p.m == 1) return launch_rows_gemm<PlainRows<along_k, 1>>(s, p);
    if (p.m <= 4) return launch_rows_gemm<PlainRows<along_k, 4>>(s, p);
    launch_rows_gemm<PlainRows<along_k, 8>>(s, p);
  } else {
    if (along_k && takes_wide_tiles(p, s.gpu)) return launch_wide_tiles(s, p, t);
    if (are_many_rows(p, s.gpu)) return launch_many_rows(s, p, t, along_k);
    launch_tensor_rows<S, along_k>(s, p);
  }
}

bool is_aligned(const void* p) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
}

// Whether all addresses are aligned to 16 bytes, at every multiple of `stride` and in every batch item.
bool in_pieces(const RowsGemm& p, int which, i64 stride, i64 count) {
  const Strides& batch = p.batch[which];
  bool fits = is_aligned(p.data[which]) && stride % count == 0;
  for (int a = 0; a < batch.rank; ++a) fits = fits && (batch.size[a] == 1 || batch.stride[a] % count == 0);
  return fits;
}

// Number of adjacent elements along n that one instruction can access: 8, 4, 2 or 1. It applies to all
// addends and results.
int together_in(const RowsGemm& p) {
  const auto fit = [&](int count) {
    bool all = p.n % count == 0 && is_aligned(p.sum) && is_aligned(p.result);
    for (const int which : {RowsGemm::d, RowsGemm::e, RowsGemm::y})
      all = all && (!p.data[which] ||
                    (p.col[which] == 1 && in_pieces(p, which, p.m == 1 ? 0 : p.row[which], count)));
    return all;
  };
  for (int count = 8; count > 1; count /= 2)
    if (fit(count)) return count;
  return 1;
}

// Operands with strides along the GEMM's axes. A broadcast axis has stride 0.
RowsGemm rows_gemm_of(const Call& call, const RowsContext* context = nullptr) {
  const Shape& out = call.out[0].layout.shape;
  const int r = out.size();
  RowsGemm p{};
  p.m = static_cast<int>(out[r - 2]), p.n = static_cast<int>(out[r - 1]);
  p.k = static_cast<int>(call.in[0].layout.shape.back());
  p.batches = 1;
  for (int a = 0; a + 2 < r; ++a) p.batches *= static_cast<int>(out[a]);
  const auto put = [&](int which, const Arg& x, i64 rows, i64 columns) {
    const tg::Strides strides = product_strides(x, out, rows, columns);
    p.data[which] = x.data;
    p.batch[which].rank = r - 2;
    for (int a = 0; a + 2 < r; ++a) p.batch[which].size[a] = out[a], p.batch[which].stride[a] = strides[a];
    p.row[which] = strides[r - 2], p.col[which] = strides[r - 1];
    p.constant[which] = context && !context->written.overlaps(x);
  };
  put(RowsGemm::x, call.in[0], p.m, p.k), put(RowsGemm::w, call.in[1], p.k, p.n);
  put(RowsGemm::y, call.out[0], p.m, p.n);
  const bool sums = context && !context->sum.empty();
  if (sums) {
    put(RowsGemm::d, context->sum[0], p.m, p.n), put(RowsGemm::e, context->sum[1], p.m, p.n);
    if (context->sum[2].data != call.out[0].data) p.sum = context->sum[2].data;
  } else if (call.in.size() == 3) {
    put(RowsGemm::d, call.in[2], p.m, p.n);
  }
  if (context && context->function != Epilogue::none) {
    p.function = context->function, p.result = context->result;
    if (p.result == call.out[0].data) p.data[p.y] = nullptr;
  }
  p.wide = call.out[0].dtype != call.in[0].dtype;
  p.together = together_in(p);
  return p;
}

bool x_in_pieces(const RowsGemm& p, DType t) {
  const i64 count = 16 / static_cast<i64>(size_of(t));
  return p.col[p.x] == 1 && in_pieces(p, p.x, p.m == 1 ? 0 : p.row[p.x], count);
}
bool is_along_k(const RowsGemm& p, DType t) {
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
  const RowsGemm p = rows_gemm_of(call);
  if (is_along_k(p, t)) return in_pieces(p, p.w, p.col[p.w], count);
  return p.col[p.w] == 1 && p.k % 8 == 0 && p.n % count == 0 && in_pieces(p, p.w, p.row[p.w], count);
}

bool is_faster_by_rows_gemm(const Call& call) {
  const DType t = call.in[0].dtype;
  if (!call.gpu.hopper || (t != DType::bf16 && t != DType::f16) || !is_for_rows_gemm(call)) return false;
  const RowsGemm p = rows_gemm_of(call);
  if (p.batches != 1 || !is_along_k(p, t) || !x_in_pieces(p, t)) return false;
  const int processors = call.gpu.processors;
  if (p.k > 4096 && p.n < 16 * processors) return false;  // cuBLASLt splits k if there are few outputs
  return p.m <= 8 || (p.m <= 16 && p.n <= 128 * processors) || (p.m <= 64 && p.n <= 32 * processors) ||
         (p.m <= 128 && i64{p.n} * p.k <= i64{1} << 22) ||
         (p.m <= 256 && p.n <= 8 * processors && i64{p.n} * p.k <= i64{1} << 20);
}

bool normalises_row(const Call& call, const RowsContext& context) {
  const DType t = call.in[0].dtype;
  if (t == DType::f32 || !is_for_rows_gemm(call)) return false;
  const RowsGemm p = rows_gemm_of(call, &context);
  return p.m == 1 && is_along_k(p, t) && x_in_pieces(p, t) && is_usual(p) && has_room_for_norm(p, call.gpu);
}

std::size_t rows_gemm_workspace(const Call& call) {
  const RowsGemm p = rows_gemm_of(call);
  return x_in_pieces(p, call.in[0].dtype)
             ? 0
             : static_cast<std::size_t>(i64{p.m} * p.k * p.batches) * size_of(call.in[0].dtype);
}

void rows_gemm(const Stream& s, const Call& call, const RowsContext& context) {
  RowsGemm p = rows_gemm_of(call, &context);
  if (p.m == 0 || p.n == 0 || p.batches == 0) return;
  const DType t = call.in[0].dtype;
  const bool along_k = is_along_k(p, t);
  if (context.norm) return launch_with_norm(s, p, *context.norm, t);
  const auto launch = [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    if (!x_in_pieces(p, t)) {
      launch_kernel(s, {blocks_for(i64{p.m} * p.k * p.batches, 256), 256}, copy_rows_of_x<S>,
                    reinterpret_cast<S*>(s.workspace), p);
      p.data[p.x] = s.workspace, p.row[p.x] = p.k, p.col[p.x] = 1, p.constant[p.x] = false;
      i64 stride = i64{p.m} * p.k;
      Strides& batch = p.batch[p.x];
      for (int a = batch.rank - 1; a >= 0; --a) batch.stride[a] = stride, stride *= batch.size[a];
    }
    along_k ? launch_for_rows<S, true>(s, p, t) : launch_for_rows<S, false>(s, p, t);
  };
  t == DType::f32 ? launch(static_cast<float*>(nullptr)) : with_half(t, launch);
}

std::string rows_gemm_choice(const Call& call, const RowsContext& context) {
  const RowsGemm p = rows_gemm_of(call);
  const DType t = call.in[0].dtype;
  std::string s = std::string(t == DType::f32 ? "plain multiply-adds" : "tensor cores") +
                  ", batch-invariant, 8 slices of k, weights along " + (is_along_k(p, t) ? "k" : "n");
  if (t != DType::f32 && is_along_k(p, t) && takes_wide_tiles(p, call.gpu))
    s += ", wgmma with tiles of " + std::to_string(wide_tile_rows(p, call.gpu)) + " rows and 64 outputs";
  else if (t != DType::f32 && are_many_rows(p, call.gpu))
    s += ", tiles of 64 rows and 128 outputs";
  if (context.norm) s += ", with the norm of its row";
  if (!context.sum.empty()) s += ", with the sum that is added";
  if (context.function != Epilogue::none)
    s += context.function == Epilogue::gelu ? ", with gelu" : ", with gelu_tanh";
  return s;
}

}  // namespace tg::cuda
