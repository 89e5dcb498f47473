// rows_gemm in 16 bits by wgmma. Multiplications and additions are the same as in rows_gemm.cu. One warp
// copies tiles of x and w by TMA. Two warpgroups multiply 64 outputs (left operand) by the tile's rows (right
// operand). Each warpgroup has half of the slices of k. At the end of a slice, the slice's sum is added to
// the total of its half.
#include <limits>

#include "backends/cuda/gemm/rows_gemm.cuh"
#include "backends/cuda/runtime/tensor_map.h"
#include "backends/cuda/tile/mma_sm90.cuh"
#include "backends/cuda/tile/pipeline_sm90.cuh"

namespace tg::cuda {

namespace {

using tile::u32;

// A tile of y with `rows` rows and 64 outputs. Each of two warpgroups has half of the slices of k and its own
// ring.
template <class S, int rows_, int blocks_, Form form_>
struct WideTile {
  using type = S;
  static constexpr Form form = form_;
  static constexpr int rows = rows_, outputs = 64, halves = 2;
  static constexpr int depth = 2 * k_chunk;  // elements of k in a stage; each slice begins at a stage
  static constexpr int threads = 128 * halves, all_threads = threads + 32;
  using X = tile::SwizzledTile<rows, depth>;
  using W = tile::SwizzledTile<outputs, depth>;
  static constexpr int stage_bytes = X::bytes + W::bytes;
  static constexpr int blocks = blocks_;  // per multiprocessor
  static constexpr int stages = (blocks == 1 ? 216 : 110) * 1024 / (halves * stage_bytes);  // of a ring
  using Ring = tile::Ring<stages>;
  static constexpr int rings_at = halves * stages * stage_bytes;
  static constexpr int shared_row = outputs + 4, total_floats = rows * shared_row;
  static constexpr int bytes = rings_at + halves * Ring::bytes;
  static_assert(halves * total_floats * 4 <= rings_at);
};

struct WideProduct {
  RowsGemm p;
  CUtensorMap x, w;
};

template <class Tile>
__global__ void __launch_bounds__(Tile::all_threads, Tile::blocks)
    wide_rows_gemm(const __grid_constant__ WideProduct a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using S = typename Tile::type;
  using Ring = typename Tile::Ring;
  TG_DYNAMIC_SHARED(memory, 1024);
  let_next_kernel_begin();
  const RowsGemm& p = a.p;
  const u32 base = ptx::shared_address(memory);
  const auto ring = [&](int half) { return Ring{base + Tile::rings_at + half * Ring::bytes}; };
  const auto x_tile = [&](int half, u32 use) {
    return typename Tile::X{base + (half * Tile::stages + Ring::stage(use)) * Tile::stage_bytes};
  };
  const auto w_tile = [&](int half, u32 use) {
    return typename Tile::W{x_tile(half, use).base + Tile::X::bytes};
  };
  const int row_tiles = (p.m + Tile::rows - 1) / Tile::rows, nth = static_cast<int>(blockIdx.x) / row_tiles,
            i0 = (static_cast<int>(blockIdx.x) - nth * row_tiles) * Tile::rows, j0 = nth * Tile::outputs;
  // Stages of k, and the stage where each half begins.
  const auto step_of = [&](int slice) { return p.slice(slice) / 2; };
  if (threadIdx.x == 0) {
    ring(0).init(4), ring(1).init(4);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  if (threadIdx.x >= Tile::threads) {  // the copying warp
    const int middle = step_of(k_slices / 2), all = step_of(k_slices), longer = max(middle, all - middle);
    // Calls f(half, n, stage) for the nth stage of each half.
    const auto each_half = [&](int n, auto&& f) {
      if (n < middle) f(0, n, n);
      if (middle + n < all) f(1, n, middle + n);
    };
    const auto ask_w = [&](int half, int n, int step) {
      ring(half).expect(n, Tile::stage_bytes);
      ptx::tma_load(w_tile(half, n).base, &a.w, ring(half).full(n), step * Tile::depth, j0, 0, 0);
    };
    const auto ask_x = [&](int half, int n, int step) {
      ptx::tma_load(x_tile(half, n).base, &a.x, ring(half).full(n), step * Tile::depth, i0, 0, 0);
    };
    const int first = min(longer, Tile::stages);
    const bool copies = threadIdx.x == Tile::threads;
    if (!p.constant[p.w]) wait_for_kernel_before();
    if (copies) {
#pragma unroll 1
      for (int n = 0; n < first; ++n) each_half(n, ask_w);
    }
    wait_for_kernel_before();
    if (copies) {
#pragma unroll 1
      for (int n = 0; n < first; ++n) each_half(n, ask_x);
#pragma unroll 1
      for (int n = first; n < longer; ++n)
        each_half(n, [&](int half, int n, int step) {
          ring(half).acquire(n);
          ask_w(half, n, step), ask_x(half, n, step);
        });
    }
    return;
  }

  const int half = __shfl_sync(~0u, threadIdx.x / 128, 0), first = step_of(half * (k_slices / 2));
  const auto own_ring = ring(half);
  p.prefetch_added<S, Tile::outputs>(0, i0, j0);
  wait_for_kernel_before();
  tile::Accumulator<16, Tile::rows> sum, total;
  u32 use = 0;
#pragma unroll 1
  for (int slice = 0; slice < k_slices / 2; ++slice) {
    const u32 end = static_cast<u32>(step_of(half * (k_slices / 2) + slice + 1) - first);
    if (use == end) {
      sum.fill(0);
    } else {
      own_ring.wait(use);
      tile::begin_ABt<S, Tile::depth>(sum, w_tile(half, use), 0, x_tile(half, use));
#pragma unroll 1
      for (++use; use < end; ++use) {
        own_ring.wait(use);
        tile::begin_adding_ABt<S, Tile::depth>(sum, w_tile(half, use), 0, x_tile(half, use));
        tile::wait_for_products<1>();
        own_ring.release(use - 1);
      }
      tile::wait_for_products<0>();
      tile::keep(sum);
      own_ring.release(use - 1);
    }
    tile::for_each(total, [&](int r, int c, float& to) { to = slice == 0 ? sum(r, c) : to + sum(r, c); });
  }

  ptx::bar_sync(1, Tile::threads);  // all warpgroups have read the stages that the totals overwrite
  float* const totals = reinterpret_cast<float*>(memory);
  const int output = static_cast<int>(threadIdx.x % 128 / 32) * 16 + tile::lane_row(),
            row = tile::lane_column();
  tile::for_each(total, [&](int r, int c, float& e) {
    totals[half * Tile::total_floats + (row + total.column(c)) * Tile::shared_row + output + total.row(r)] =
        e;
  });
  ptx::bar_sync(1, Tile::threads);
  p.write_tile<S, Tile::form, Tile::rows, Tile::outputs, Tile::threads>(
      0, i0, j0, [&](int i, int j, auto& sums) {
#pragma unroll
        for (int v = 0; v < 8; v += 4) {
          const float* const at = totals + i * Tile::shared_row + j + v;
          const float4 x = *reinterpret_cast<const float4*>(at),
                       y = *reinterpret_cast<const float4*>(at + Tile::total_floats);
          sums[v] = x.x + y.x, sums[v + 1] = x.y + y.y, sums[v + 2] = x.z + y.z, sums[v + 3] = x.w + y.w;
        }
      });
#endif
}

template <class Tile>
void launch_tiles(const Stream& s, const RowsGemm& p) {
  constexpr DType dtype = std::is_same_v<typename Tile::type, __half> ? DType::f16 : DType::bf16;
  const auto map = [&](RowsGemm::Which which, i64 count, i64 row, int box) {
    return tensor_map(dtype, p.data[which], {p.k, count, 1, 1}, {row, 8, 8}, {Tile::depth, box, 1, 1});
  };
  const WideProduct a{p, map(p.x, p.m, p.row[p.x], Tile::rows), map(p.w, p.n, p.col[p.w], Tile::outputs)};
  LaunchShape shape(dim3(static_cast<unsigned>(p.tiles(Tile::rows, Tile::outputs))), dim3(Tile::all_threads),
                    Tile::bytes);
  shape.early = true;
  launch_kernel(s, shape, wide_rows_gemm<Tile>, a);
}

template <class S, int rows, int blocks>
void launch_form(const Stream& s, const RowsGemm& p) {
  with_usual_form(p, [&](auto form) { launch_tiles<WideTile<S, rows, blocks, form.value>>(s, p); });
}

struct TileShape {
  int rows, blocks;
};

// Measured on an H200 (docs/notes/h200-few-row-gemms.md). If k is short, each multiprocessor has two small
// tiles. One tile is copied while the other tile is multiplied. If k is long and every tile can have its own
// multiprocessor, the tile size with the least row padding is used. Otherwise larger tiles are used, because
// they read the weights less often.
TileShape tile_shape(const RowsGemm& p, const Gpu& gpu) {
  constexpr TileShape of_32{32, 2}, of_64{64, 2}, of_96{96, 1}, of_128{128, 1};
  const bool is_short = p.k <= 1024;
  if (p.m <= 32 || (is_short && p.tiles(32, 64) <= 2 * gpu.processors)) return of_32;
  if (!is_short) {
    TileShape best{};
    i64 fewest = std::numeric_limits<i64>::max();
    for (const TileShape shape : {TileShape{64, 1}, of_96, of_128}) {
      const i64 tiles = p.tiles(shape.rows, 64);
      if (tiles <= gpu.processors && tiles * shape.rows < fewest) best = shape, fewest = tiles * shape.rows;
    }
    if (best.rows > 0) return best;
  }
  if (p.m > 64 && p.m <= 96) return of_96;
  return is_short || p.m <= 64 ? of_64 : of_128;
}

}  // namespace

bool takes_wide_tiles(const RowsGemm& p, const Gpu& gpu) {
  return gpu.hopper && p.m > 16 && is_usual(p) && p.row[p.x] > 0 && p.col[p.w] > 0 &&
         p.tiles(64, 32) > gpu.processors;
}
int wide_tile_rows(const RowsGemm& p, const Gpu& gpu) {
  return tile_shape(p, gpu).rows;
}
void launch_wide_tiles(const Stream& s, const RowsGemm& p, DType t) {
  const TileShape shape = tile_shape(p, s.gpu);
  with_half(t, [&](auto* type) {
    using S = pointee_t<decltype(type)>;
    if (shape.rows == 32) return launch_form<S, 32, 2>(s, p);
    if (shape.rows == 64)
      return shape.blocks == 2 ? launch_form<S, 64, 2>(s, p) : launch_form<S, 64, 1>(s, p);
    shape.rows == 96 ? launch_form<S, 96, 1>(s, p) : launch_form<S, 128, 1>(s, p);
  });
}

}  // namespace tg::cuda
