// linear_cross_entropy without a pass over the logits (target.cuh). c is l_t, so e_t is 1. If a row's sum
// exceeds 2^64 (a loss above 44 nats), exponentials might overflow. Further kernels then recompute the row,
// where c is the row's largest logit. If there is no such row, they return immediately.

#include <algorithm>

#include "backends/cuda/gemm/exp_product_sm90.cuh"
#include "backends/cuda/kernels/target.cuh"
#include "backends/cuda/runtime/tensor_map.h"
#include "ops/cross_entropy.h"

namespace tg::cuda {

namespace {

using exp_product::Sum;

constexpr float most = 0x1p64f;
constexpr int rows_of_block = 32, slices = 8;

struct HeadLoss {
  const __nv_bfloat16 *x, *w;  // [n, c], [V, c]
  i64 x_row, w_row;
  Targets targets;
  int n, c, V, column_tiles;
  float hit, z_loss;  // 1 − ε and λ
  float *loss, *factor;
  __nv_bfloat16* G;
  float *own, *shift;  // [n]: l_t, and the value subtracted from logits
  Sum* sums;           // [column_tiles, n]
  int* again;          // flags: whether any row must be recomputed, then one flag for each pair of row tiles
};

// Computes l_t of each row, one warp per row.
__global__ void __launch_bounds__(256) target_logits(const __grid_constant__ HeadLoss a, Faults faults) {
  begin_early();
  const int r = static_cast<int>(blockIdx.x * 8 + threadIdx.x / 32),
            lane = static_cast<int>(threadIdx.x % 32);
  if (r >= a.n) return;
  const i64 t = a.targets.at(r, a.V, faults, lane == 0);
  float sum = 0;
  if (t >= 0) {
    const auto* const x = reinterpret_cast<const Words<__nv_bfloat16, 8>*>(a.x + r * a.x_row);
    const auto* const w = reinterpret_cast<const Words<__nv_bfloat16, 8>*>(a.w + t * a.w_row);
    for (int i = lane; i < a.c / 8; i += 32) {
      float p[8], q[8];
      unpack(x[i], p), unpack(w[i], q);
#pragma unroll
      for (int e = 0; e < 8; ++e) sum += p[e] * q[e];
    }
  }
#pragma unroll
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (lane > 0) return;
  a.own[r] = sum, a.shift[r] = t >= 0 ? sum : INFINITY;
  if (r == 0) a.again[0] = 0;
  if (r % exp_product::pair_rows == 0) a.again[1 + r / exp_product::pair_rows] = 0;
}

// Sums s in the order of the tiles, then computes the loss, h and the target's G.
__global__ void __launch_bounds__(rows_of_block* slices)
    finish_rows(const __grid_constant__ HeadLoss a, Faults faults, bool is_again) {
  begin_early();
  const int pair = static_cast<int>(blockIdx.x) * rows_of_block / exp_product::pair_rows;
  if (is_again && (a.again[0] == 0 || a.again[1 + pair] == 0)) return;
  const int lane = static_cast<int>(threadIdx.x % 32), slice = static_cast<int>(threadIdx.x / 32),
            r = static_cast<int>(blockIdx.x) * rows_of_block + lane;
  Sum all{0, -INFINITY};
  const auto add = [&](const Sum& more) {
    all.sum += more.sum, all.largest = fmaxf(all.largest, more.largest);
  };
  if (r < a.n)
    for (int i = slice; i < a.column_tiles; i += slices) add(a.sums[i64{i} * a.n + r]);
  __shared__ Sum of_slice[slices][rows_of_block];
  of_slice[slice][lane] = all;
  __syncthreads();
  if (slice > 0 || r >= a.n) return;
#pragma unroll
  for (int i = 1; i < slices; ++i) add(of_slice[i][lane]);
  const i64 t = a.targets.at(r, a.V, faults, false);
  if (t < 0) {
    a.loss[r] = a.factor[r] = 0;
    return;
  }
  const float c = a.shift[r], own = a.own[r], log_sum = logf(all.sum), xi = c + log_sum,
              factor = row_factor(xi, a.z_loss);
  a.loss[r] = log_sum + (c - own) + (1 - a.hit) * own + a.z_loss * xi * xi;
  a.factor[r] = factor / all.sum;
  a.G[i64{r} * a.V + t] =
      narrow<__nv_bfloat16>(exp2f((own - c) * exp_product::log2_e) - a.hit * all.sum / factor);
  if (is_again || !(all.sum > most)) return;
  a.shift[r] = all.largest;
  a.again[0] = a.again[1 + pair] = 1;
}

bool has_rows_of_pieces(const Arg& a, i64 row) {
  return row % 8 == 0 && row > 0 && reinterpret_cast<std::uintptr_t>(a.data) % 16 == 0;
}

int tiles(int n, int of) {
  return (n + of - 1) / of;
}

// Offsets in the workspace.
struct Places {
  std::size_t sums, again, bytes;
  Places(std::size_t n, std::size_t V) {
    const auto aligned = [](std::size_t b) { return (b + 255) / 256 * 256; };
    sums = aligned(2 * n * sizeof(float));
    again = aligned(sums + (V + exp_product::columns - 1) / exp_product::columns * n * sizeof(Sum));
    bytes = again + (2 + n / exp_product::pair_rows) * sizeof(int);
  }
};

Places places_of(const Call& c) {
  const Shape& G = c.out[2].layout.shape;
  return {static_cast<std::size_t>(G[0]), static_cast<std::size_t>(G[1])};
}

bool is_for_head_loss(const Call& call) {
  const Arg &x = call.in[0], &w = call.in[1];
  const Layout &lx = x.layout, &lw = w.layout;
  // If rows have fewer logits, a cuBLASLt GEMM and a separate pass are used.
  constexpr i64 least = 1024, largest = i64{1} << 30;
  return call.gpu.hopper && x.dtype == DType::bf16 && lx.strides[1] == 1 && lw.strides[0] == 1 &&
         has_rows_of_pieces(x, lx.strides[0]) && has_rows_of_pieces(w, lw.strides[1]) &&
         lx.shape[1] % 8 == 0 && lx.shape[1] > 0 && lw.shape[1] % 8 == 0 && lw.shape[1] >= least &&
         lw.shape[1] < largest && lx.shape[0] < largest;
}

void launch_head_loss(const Stream& s, const Call& call) {
  const auto& attrs = call.attrs->as<LinearCrossEntropyAttrs>();
  const Arg &x = call.in[0], &w = call.in[1];
  const auto size = [](const Arg& a, int axis) { return static_cast<int>(a.layout.shape[axis]); };
  const int n = size(x, 0), c = size(x, 1), V = size(w, 1), column_tiles = tiles(V, exp_product::columns);
  if (n == 0) return;
  const Places places = places_of(call);
  float* const own = reinterpret_cast<float*>(s.workspace);
  const HeadLoss a{reinterpret_cast<const __nv_bfloat16*>(x.data),
                   reinterpret_cast<const __nv_bfloat16*>(w.data),
                   x.layout.strides[0],
                   w.layout.strides[1],
                   Targets(call.in[2], attrs.ignore_index),
                   n,
                   c,
                   V,
                   column_tiles,
                   static_cast<float>(1 - attrs.smoothing),
                   static_cast<float>(attrs.z_loss),
                   reinterpret_cast<float*>(call.out[0].data),
                   reinterpret_cast<float*>(call.out[1].data),
                   reinterpret_cast<__nv_bfloat16*>(call.out[2].data),
                   own,
                   own + n,
                   reinterpret_cast<Sum*>(s.workspace + places.sums),
                   reinterpret_cast<int*>(s.workspace + places.again)};
  exp_product::Plan plan{tensor_map(x.dtype, x.data, {c, n, 1, 1}, {a.x_row, 8, 8},
                                    {exp_product::depth, exp_product::rows, 1, 1}),
                         tensor_map(w.dtype, w.data, {c, 2, V / 8, 4}, {a.w_row, 8 * a.w_row, 2 * a.w_row},
                                    {exp_product::depth, 2, exp_product::columns / 16, 4}),
                         n,
                         V,
                         tiles(c, exp_product::depth),
                         tiles(n, exp_product::pair_rows),
                         column_tiles,
                         a.shift,
                         call.out[2].data,
                         a.sums,
                         nullptr};
  const LaunchShape shape =
      pairs_of_blocks(s.gpu, plan.row_pairs * column_tiles, tile::pair_threads, exp_product::Shared::bytes);
  const unsigned blocks = blocks_for(n, rows_of_block);
  launch_early(s, {blocks_for(n, 8), 256}, target_logits, a, s.faults);
  for (const bool is_again : {false, true}) {
    plan.some = is_again ? a.again : nullptr;
    launch_early(s, shape, exp_product::exp_product<__nv_bfloat16>, plan);
    launch_early(s, {blocks, rows_of_block * slices}, finish_rows, a, s.faults, is_again);
  }
}

struct HeadLossPlan final : KernelPlan {
  void launch(const Stream& s, const Call& c) const override { launch_head_loss(s, c); }
  std::size_t workspace(const Call& c) const override { return places_of(c).bytes; }
  std::string choice(const Call&) const override { return "exponentials from the product, by wgmma"; }
};

}  // namespace

PlanPtr plan_head_loss(const Call& call) {
  return is_for_head_loss(call) ? std::make_unique<HeadLossPlan>() : nullptr;
}

}  // namespace tg::cuda
