// rows_gemm of many rows in 16 bits. Multiplications and additions are the same as in rows_gemm.cu. Tiles are
// staged in shared memory. Each of eight warps has 32 outputs and 32 rows, and iterates over all of k. At the
// end of each slice, it adds the sum of the slice to its total. On Hopper, rows_gemm_sm90.cu computes the
// usual forms.
#include "backends/cuda/gemm/rows_gemm.cuh"
#include "backends/cuda/tile/terms.cuh"

namespace tg::cuda {

namespace {

using tile::u32;

template <class S, bool along_k, Form form>
struct ManyRows {
  static constexpr int outputs = 128, rows = 64, depth = 64;  // size of a tile; elements of k in a stage
  static constexpr int threads = 256, stages = 3;
  static constexpr int row_bytes = 2 * depth;  // bytes of a row of x, or of w along k
  static constexpr int x_bytes = rows * row_bytes, stage_bytes = x_bytes + outputs * row_bytes;
  static constexpr int shared_row = outputs + 4;  // floats between rows of sums
  // Totals of the first half of the slices are stored after the stages. Totals of all slices overwrite the
  // stages.
  static constexpr int half_at = stages * stage_bytes, bytes = half_at + rows * shared_row * 4;
  static_assert(rows * shared_row * 4 <= half_at);

  static constexpr int k_step =
      along_k ? 32 : 16;  // rows of w, or rows along k, copied at a time by all threads

  const RowsGemm& p;
  const int i0, j0, chunks = p.slice(k_slices);
  const int lane = tile::lane_id(), warp = threadIdx.x / 32, first_output = warp / 2 * 32,
            first_row = warp % 2 * 32;
  const unsigned short *x, *w;              // first piece that the thread copies
  const u32 memory, right, left;            // tiles; ldmatrix offsets in the first tiles of x and w
  float sum[2][4][4] = {}, total[2][4][4];  // 16 outputs and 8 rows each

  __device__ __forceinline__ ManyRows(const RowsGemm& p, int item, int i0, int j0, u32 memory)
      : p(p),
        i0(i0),
        j0(j0),
        x(p.template at<unsigned short, form>(p.x, item) + (i0 + row_of()) * p.row[p.x] + 8 * piece_of()),
        w(p.template at<unsigned short, form>(p.w, item) +
          (along_k ? (j0 + row_of()) * p.col[p.w] + 8 * piece_of()
                   : k_of() * p.row[p.w] + j0 + 8 * output_of())),
        memory(memory),
        right(place(first_row + lane % 8, lane / 8)),
        left(x_bytes + (along_k ? place(first_output + lane % 16, lane / 16) : place_of_matrix())) {}

  // Indices of the pieces that a thread copies from a row of x, from w along k, or from a row of w along n.
  static __device__ __forceinline__ int row_of() { return threadIdx.x / 8; }
  static __device__ __forceinline__ int piece_of() { return threadIdx.x % 8; }
  static __device__ __forceinline__ int k_of() { return threadIdx.x / 16; }
  static __device__ __forceinline__ int output_of() { return threadIdx.x % 16; }

  // Offset of 16 bytes of a row in a tile. The pieces of the eight rows of an 8 × 8 part are in different
  // banks.
  static __device__ __forceinline__ u32 place(int row, int piece) {
    return static_cast<u32>(row * row_bytes + (piece ^ row % 8) * 16);
  }
  static __device__ __forceinline__ u32 place_along_n(int row, int piece) {
    return static_cast<u32>(row * 2 * outputs + (piece ^ row % 8) * 16);
  }
  // The row of an 8 × 8 matrix whose address the lane passes to ldmatrix. The first two matrices are outputs
  // 0 … 8 and 8 … 16. The other two are the same outputs of the next eight rows along k.
  __device__ __forceinline__ u32 place_of_matrix() const {
    return place_along_n(lane % 8 + lane / 16 * 8, first_output / 8 + lane / 8 % 2);
  }

  // Start the copies of a stage of x or w. Stages after the last one are ignored.
  __device__ __forceinline__ void ask_x(int stage) const {
    const int k0 = stage * depth;
    if (k0 >= p.k) return;
    const u32 to = memory + stage % stages * stage_bytes;
    const bool some = k0 + 8 * piece_of() < p.k;
    const unsigned short* from = x + k0;
#pragma unroll
    for (int n = 0; n < rows / 32; ++n, from += 32 * p.row[p.x])
      copy(to + place(row_of(), piece_of()) + n * 32 * row_bytes, from, some && i0 + row_of() + 32 * n < p.m);
  }
  __device__ __forceinline__ void ask_w(int stage) const {
    const int k0 = stage * depth;
    if (k0 >= p.k) return;
    const u32 to = memory + stage % stages * stage_bytes + x_bytes;
    const bool some = k0 + 8 * piece_of() < p.k;
    const unsigned short* from = along_k ? w + k0 : w + k0 * p.row[p.w];
#pragma unroll
    for (int n = 0; n < 4; ++n, from += k_step * (along_k ? p.col[p.w] : p.row[p.w]))
      if constexpr (along_k)
        copy(to + place(row_of(), piece_of()) + n * 32 * row_bytes, from,
             some && j0 + row_of() + 32 * n < p.n);
      else
        copy(to + place_along_n(k_of(), output_of()) + n * 16 * 2 * outputs, from,
             k0 + k_of() + 16 * n < p.k && j0 + 8 * output_of() < p.n);
  }

  // Multiplies half of a stage.
  __device__ __forceinline__ void add(int chunk) {
    const u32 at = memory + chunk / 2 % stages * stage_bytes;
    const int part = chunk % 2;
    u32 b[4][4];
#pragma unroll
    for (int n = 0; n < 4; ++n) ptx::ldmatrix(b[n], at + (right ^ part * 64) + n * 8 * row_bytes);
    tile::Fragment a[2][2];
#pragma unroll
    for (int o = 0; o < 2; ++o)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        if constexpr (along_k)
          ptx::ldmatrix(a[o][half].x, at + (left ^ (part * 64 + half * 32)) + o * 16 * row_bytes);
        else
          ptx::ldmatrix_trans(a[o][half].x, at + (left ^ o * 32) + (32 * part + 16 * half) * 2 * outputs);
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int o = 0; o < 2; ++o)
#pragma unroll
        for (int n = 0; n < 4; ++n) tile::mma(sum[o][n], a[o][half], b[n][2 * half], b[n][2 * half + 1], S());
  }

  // Calls f(offset in [rows, outputs] in shared memory, sum, total) for each element of the thread.
  template <class F>
  __device__ __forceinline__ void each(F&& f) {
#pragma unroll
    for (int o = 0; o < 2; ++o)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          f((first_row + 8 * n + lane % 4 * 2 + e % 2) * shared_row + first_output + 16 * o + e / 2 * 8 +
                lane / 4,
            sum[o][n][e], total[o][n][e]);
  }
  __device__ __forceinline__ void end_slice(int slice, float* half) {
    const bool begins = slice % (k_slices / 2) == 0;
    each([&](int, float& s, float& t) { t = begins ? s : t + s, s = 0; });
    if (slice == k_slices / 2 - 1) each([&](int at, float, float t) { half[at] = t; });
  }

  // before_x() is called before the first element of x is read. If at_once is set, weights are read before
  // that call.
  template <class Wait>
  __device__ __forceinline__ void multiply(bool at_once, float* half, Wait&& before_x) {
    int slice = 0, end = p.slice(1);
    const auto end_slices = [&](int chunk) {  // for slices that end before this chunk
      while (slice < k_slices && end == chunk) {
        end_slice(slice, half);
        end = p.slice(++slice + 1);
      }
    };
    const auto ask_first = [&] {
#pragma unroll
      for (int n = 0; n + 1 < stages; ++n) ask_w(n);
    };
    if (at_once) ask_first();
    before_x();
    if (!at_once) ask_first();
#pragma unroll
    for (int n = 0; n + 1 < stages; ++n) ask_x(n), ptx::cp_async_commit();
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (chunk % 2 == 0) {
        ptx::cp_async_wait<stages - 2>();
        __syncthreads();  // the stage has arrived, and the previous one is free
        ask_w(chunk / 2 + stages - 1), ask_x(chunk / 2 + stages - 1), ptx::cp_async_commit();
      }
      end_slices(chunk);
      add(chunk);
    }
    end_slices(chunks);
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

  __device__ __forceinline__ void leave(float* to, const float* half) {
    each([&](int at, float, float t) { to[at] = half[at] + t; });
  }

 private:
  static __device__ __forceinline__ void copy(u32 to, const unsigned short* from, bool some) {
    ptx::cp_async_16(to, from, some ? 16 : 0);
  }
};

template <class S, bool along_k, Form form>
__global__ void __launch_bounds__(256, 2) many_rows_gemm_kernel(const __grid_constant__ RowsGemm p) {
  using Rows = ManyRows<S, along_k, form>;
  TG_DYNAMIC_SHARED(memory, 1024);
  let_next_kernel_begin();
  const int row_tiles = (p.m + Rows::rows - 1) / Rows::rows;
  const int i0 = static_cast<int>(blockIdx.x) % row_tiles * Rows::rows,
            j0 = static_cast<int>(blockIdx.x) / row_tiles * Rows::outputs;
  const int items = form == Form::any ? p.batches : 1;
#pragma unroll 1
  for (int item = blockIdx.y; item < items; item += gridDim.y) {
    Rows rows(p, item, i0, j0, ptx::shared_address(memory));
    const bool begins = item == static_cast<int>(blockIdx.y);
    p.template prefetch_added<S, Rows::outputs>(item, i0, j0);
    float* const sums = reinterpret_cast<float*>(memory);
    float* const half = reinterpret_cast<float*>(memory + Rows::half_at);
    rows.multiply(begins && p.constant[p.w], half, [&] {
      if (begins) wait_for_kernel_before();
    });
    rows.leave(sums, half);
    __syncthreads();
    p.template write_tile<S, form, Rows::rows, Rows::outputs, Rows::threads>(
        item, i0, j0, [&](int i, int j, auto& sum) {
#pragma unroll
          for (int v = 0; v < 8; v += 4)
            *reinterpret_cast<float4*>(sum + v) =
                *reinterpret_cast<const float4*>(sums + i * Rows::shared_row + j + v);
        });
    __syncthreads();
  }
}

using AnyManyRows = ManyRows<__half, true, Form::any>;  // all instances have the same tiles
i64 many_rows_tiles(const RowsGemm& p) {
  return p.tiles(AnyManyRows::rows, AnyManyRows::outputs);
}

template <class S>
void launch_tiles_of_rows(const Stream& s, const RowsGemm& p, bool along_k) {
  const unsigned batches = static_cast<unsigned>(p.batches < 65535 ? p.batches : 65535);
  const LaunchShape shape{dim3(static_cast<unsigned>(many_rows_tiles(p) / p.batches), batches),
                          AnyManyRows::threads, AnyManyRows::bytes};
  if (!along_k) return launch_early(s, shape, many_rows_gemm_kernel<S, false, Form::any>, p);
  if (!is_usual(p)) return launch_early(s, shape, many_rows_gemm_kernel<S, true, Form::any>, p);
  with_usual_form(p,
                  [&](auto form) { launch_early(s, shape, many_rows_gemm_kernel<S, true, form.value>, p); });
}

}  // namespace

bool are_many_rows(const RowsGemm& p, const Gpu& gpu) {
  return p.m > 16 && many_rows_tiles(p) > gpu.processors;
}
void launch_many_rows(const Stream& s, const RowsGemm& p, DType t, bool along_k) {
  with_half(t, [&](auto* type) { launch_tiles_of_rows<pointee_t<decltype(type)>>(s, p, along_k); });
}

}  // namespace tg::cuda
