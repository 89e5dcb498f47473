// rows_gemm of 17 rows and more on Hopper, where tiles alone would not occupy the multiprocessors: the same
// products and additions as in rows_gemm.cu. The eight blocks of a cluster take a slice of k each of a tile
// of y, so that all weights are on their way at once. Then each block gets its share of the tile's rows from
// all of them, and adds these sums in the order of the slices.
#include "backends/cuda/kernels/rows_gemm.cuh"
#include "backends/cuda/tile/terms.cuh"

namespace tg::cuda {

namespace {

using tile::u32;

template <class S, int outputs_>
struct SliceOfRows {
  static constexpr int outputs = outputs_, rows = 64, depth = 64;  // of a tile; of k in a stage
  static constexpr int threads = 128, stages = 3;
  static constexpr int row_bytes = 2 * depth;
  static constexpr int x_bytes = rows * row_bytes, stage_bytes = x_bytes + outputs * row_bytes;
  static constexpr int of_warp = outputs / 2;     // its outputs, of 32 rows
  static constexpr int shared_row = outputs + 4;  // of sums, in floats
  static constexpr int share = rows / k_slices;   // rows that a block adds up
  static constexpr int share_bytes = share * shared_row * 4;
  // Stages, then what comes from the blocks, then a barrier for that. Sums that leave lie over the stages.
  static constexpr int received = stages * stage_bytes, barrier = received + k_slices * share_bytes,
                       bytes = barrier + 16;
  static_assert(rows * shared_row * 4 <= received);

  const RowsProduct& p;
  const int i0, j0, first, end;  // chunks of k
  const int lane = tile::lane_id(), warp = threadIdx.x / 32, first_output = warp / 2 * of_warp,
            first_row = warp % 2 * 32;
  const unsigned short *x, *w;    // the first piece that the thread copies
  const u32 memory, right, left;  // tiles; where the thread finds operands in the first tile of x and of w
  float sum[of_warp / 16][4][4] = {};  // of 16 outputs and 8 rows each

  __device__ __forceinline__ SliceOfRows(const RowsProduct& p, int item, int i0, int j0, int slice,
                                         u32 memory)
      : p(p),
        i0(i0),
        j0(j0),
        first(p.slice(slice)),
        end(p.slice(slice + 1)),
        x(p.at<unsigned short>(p.x, item) + (i0 + row_of()) * p.row[p.x] + first * k_chunk + 8 * piece_of()),
        w(p.at<unsigned short>(p.w, item) + (j0 + row_of()) * p.col[p.w] + first * k_chunk + 8 * piece_of()),
        memory(memory),
        right(place(first_row + lane / 4, lane % 4)),
        left(x_bytes + place(first_output + lane / 4, lane % 4)) {}

  // What a thread copies: a piece of each 16th row.
  static __device__ __forceinline__ int row_of() { return threadIdx.x / 8; }
  static __device__ __forceinline__ int piece_of() { return threadIdx.x % 8; }

  // Where 16 bytes of a row lie in a tile: eight pieces of two rows that are read together are in different
  // banks.
  static __device__ __forceinline__ u32 place(int row, int piece) {
    return static_cast<u32>(row * row_bytes + (piece ^ row % 2 * 4) * 16);
  }

  // Copies of a stage of x, and of w; none beyond the slice.
  __device__ __forceinline__ void ask_x(int stage) const {
    copy<rows>(x, p.row[p.x], p.m - i0, stage, memory + stage % stages * stage_bytes);
  }
  __device__ __forceinline__ void ask_w(int stage) const {
    copy<outputs>(w, p.col[p.w], p.n - j0, stage, memory + stage % stages * stage_bytes + x_bytes);
  }

  // Half of a stage.
  __device__ __forceinline__ void add(int nth) {
    const u32 at = memory + nth / 2 % stages * stage_bytes;
    const int part = nth % 2;
    uint4 b[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) b[n] = ptx::ld_shared_v4(at + (right ^ part * 64) + n * 8 * row_bytes);
#pragma unroll
    for (int o = 0; o < of_warp / 16; ++o) {
      const u32 from = at + (left ^ part * 64) + o * 16 * row_bytes;
      const uint4 low = ptx::ld_shared_v4(from), high = ptx::ld_shared_v4(from + 8 * row_bytes);
      const tile::Fragment a[2] = {{{low.x, high.x, low.y, high.y}}, {{low.z, high.z, low.w, high.w}}};
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < 4; ++n)
          tile::mma(sum[o][n], a[half], half ? b[n].z : b[n].x, half ? b[n].w : b[n].y, S());
    }
  }

  // before_x() comes before the first element of x is read; `at_once`: weights are read before that.
  template <class Wait>
  __device__ __forceinline__ void multiply(bool at_once, Wait&& before_x) {
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
    for (int nth = 0; nth < end - first; ++nth) {
      if (nth % 2 == 0) {
        ptx::cp_async_wait<stages - 2>();
        __syncthreads();  // the stage is there, and the one before it is free
        ask_w(nth / 2 + stages - 1), ask_x(nth / 2 + stages - 1), ptx::cp_async_commit();
      }
      add(nth);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

  // [rows, outputs] in shared memory.
  __device__ __forceinline__ void leave(float* to) const {
#pragma unroll
    for (int o = 0; o < of_warp / 16; ++o)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          to[(first_row + 8 * n + lane % 4 * 2 + e % 2) * shared_row + first_output + 16 * o + e / 2 * 8 +
             lane / 4] = sum[o][n][e];
  }

 private:
  // A stage of `count` rows, of which `there` exist, `stride` apart.
  template <int count>
  __device__ __forceinline__ void copy(const unsigned short* from, i64 stride, int there, int stage,
                                       u32 to) const {
    const int chunk = first + 2 * stage, k0 = chunk * k_chunk + 8 * piece_of();
    if (chunk >= end) return;
    const bool some = k0 < p.k && k0 < end * k_chunk;
    from += stage * depth;
#pragma unroll
    for (int n = 0; n < count / 16; ++n, from += 16 * stride)
      ptx::cp_async_16(to + place(row_of(), piece_of()) + n * 16 * row_bytes, from,
                       some && row_of() + 16 * n < there ? 16 : 0);
  }
};

template <class S, int outputs>
__global__ void __launch_bounds__(128, outputs == 64 ? 3 : 2)
    rows_gemm_by_clusters(const __grid_constant__ RowsProduct p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Rows = SliceOfRows<S, outputs>;
  TG_DYNAMIC_SHARED(memory, 1024);
  let_product_after_begin();
  const int slice = static_cast<int>(ptx::cluster_rank()), item = static_cast<int>(blockIdx.y),
            tile = static_cast<int>(blockIdx.x) / k_slices, row_tiles = (p.m + Rows::rows - 1) / Rows::rows;
  const int i0 = tile % row_tiles * Rows::rows, j0 = tile / row_tiles * Rows::outputs;
  const u32 base = ptx::shared_address(memory), barrier = base + Rows::barrier;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(barrier, 1);
    ptx::fence_mbarrier_init();
    ptx::mbarrier_arrive_expect(barrier, k_slices * Rows::share_bytes);
  }
  ptx::cluster_arrive();
  Rows rows(p, item, i0, j0, slice, base);
  p.prefetch_added<S, outputs>(item, i0 + slice * Rows::share, j0);
  rows.multiply(p.constant[p.w], [] { wait_for_step_before(); });
  rows.leave(reinterpret_cast<float*>(memory));
  ptx::fence_async();
  ptx::cluster_wait();  // barriers are there
  __syncthreads();
  if (threadIdx.x < k_slices) {
    const u32 to = threadIdx.x;
    ptx::bulk_copy_to(ptx::shared_of(base + Rows::received + slice * Rows::share_bytes, to),
                      base + to * Rows::share_bytes, Rows::share_bytes, ptx::shared_of(barrier, to));
  }
  ptx::mbarrier_wait(barrier, 0);
  const float* const sums = reinterpret_cast<const float*>(memory + Rows::received);
  p.write<S, Rows::share, outputs, Rows::threads>(item, i0 + slice * Rows::share, j0, [&](int i, int j) {
    const float* from = sums + i * Rows::shared_row + j;
    float sum = from[0];
#pragma unroll
    for (int n = 1; n < k_slices; ++n) sum += from[n * Rows::share * Rows::shared_row];
    return sum;
  });
  __syncwarp();
  ptx::cluster_arrive(), ptx::cluster_wait();  // what this block sends is there
#endif
}

template <class S, int outputs>
void launch_clusters(const Stream& s, const RowsProduct& p) {
  using Rows = SliceOfRows<S, outputs>;
  const i64 tiles = (i64{p.m} + Rows::rows - 1) / Rows::rows * ((i64{p.n} + outputs - 1) / outputs);
  LaunchShape shape{dim3(static_cast<unsigned>(k_slices * tiles), static_cast<unsigned>(p.batches)),
                    Rows::threads, Rows::bytes};
  shape.early = true, shape.cluster = k_slices;
  launch_kernel(s, shape, rows_gemm_by_clusters<S, outputs>, p);
}

// Tiles of 64 outputs where there are few blocks; of 128, which read x half as often, where those are enough.
template <class S>
void launch_slices_of_rows(const Stream& s, const RowsProduct& p) {
  const i64 wide = (i64{p.m} + 63) / 64 * ((i64{p.n} + 127) / 128) * k_slices * p.batches;
  wide > s.gpu.processors ? launch_clusters<S, 128>(s, p) : launch_clusters<S, 64>(s, p);
}

}  // namespace

bool are_for_clusters(const RowsProduct& p, const Gpu& gpu, bool along_k) {
  const i64 tiles = (i64{p.m} + 63) / 64 * ((i64{p.n} + 127) / 128) * p.batches;
  return gpu.hopper && along_k && p.m > 16 && p.batches <= 65535 && tiles < gpu.processors;
}
void launch_clusters_of_rows(const Stream& s, const RowsProduct& p, __nv_bfloat16) {
  launch_slices_of_rows<__nv_bfloat16>(s, p);
}
void launch_clusters_of_rows(const Stream& s, const RowsProduct& p, __half) {
  launch_slices_of_rows<__half>(s, p);
}

}  // namespace tg::cuda
