// Small GEMMs, with one block for each tile of 32 × 32 elements (matmul.h). The warps of a block process
// chunks of k round-robin. Each warp copies its own operands and does not wait for other warps' copies. The
// warps' sums are added in order. A GEMM's result is therefore bitwise independent of other GEMMs in the
// launch.
#include "backends/cuda/gemm/matmul.h"

#include <algorithm>
#include <climits>
#include <string>
#include <vector>

#include "backends/cuda/fusion/fusion.h"
#include "backends/cuda/kernels/any.cuh"
#include "backends/cuda/kernels/elements.cuh"
#include "backends/cuda/kernels/launch.cuh"
#include "backends/cuda/tile/terms.cuh"

namespace tg::cuda {

namespace {

using tile::u32;

constexpr int small_tile = 32, small_warps = 8, small_threads = 32 * small_warps;
constexpr int small_chunk = 32;           // of k
constexpr int operand_bytes = 2048;       // a chunk of one operand
constexpr int sums_row = small_tile + 4;  // floats, with padding between rows
constexpr int sums_bytes = small_tile * sums_row * 4;
constexpr int most_products = 32;  // per launch

// Lines are rows or columns of a matrix. Their elements are contiguous in memory.
struct Lines {
  const unsigned short* data;
  int step;        // stride between lines
  bool along_k;    // a line runs along k, and is a row of a or a column of b
  bool in_pieces;  // lines consist of aligned 16-byte pieces
};

struct GroupedGemm {
  Lines a, b;
  const unsigned short* d;  // null: no addend
  unsigned short* y;
  int m, n, k, d_step, y_step;  // d_step is 0 if one row is added to all
  int first;                    // index of its first block
  bool in_fours;                // four adjacent elements of d and y can be accessed at a time
};
template <int most>
struct GroupedGemms {
  int count;
  GroupedGemm at[most];
};

// A warp copies a chunk of an operand to shared memory. The chunk has elements k0 … k0 + 31 along k and i0 …
// i0 + 31 along the other axis. Missing elements are zero. The code is kept short because it runs once.
__device__ __forceinline__ void copy_chunk(tile::SharedTile<small_chunk> to, const Lines& x, int k0, int k,
                                           int i0, int others) {
  const int first = x.along_k ? i0 : k0, lines = x.along_k ? others : k, from = x.along_k ? k0 : i0,
            numbers = x.along_k ? k : others;
  const int piece = tile::lane_id() % 4, at = from + 8 * piece;
  int row = tile::lane_id() / 4;
  const unsigned short* source = x.data + i64{first + row} * x.step + at;
  if (x.in_pieces) {
#pragma unroll
    for (int n = 0; n < 4; ++n, row += 8, source += i64{8} * x.step) {
      const bool there = first + row < lines && at < numbers;
      ptx::cp_async_16(to.address(row, piece), there ? source : x.data, there ? 16 : 0);
    }
    return;
  }
#pragma unroll 1
  for (int n = 0; n < 4; ++n, row += 8, source += i64{8} * x.step) {
    u32 word[4] = {};
    const int some = first + row < lines ? numbers - at : 0;
#pragma unroll
    for (int e = 0; e < 8; ++e)
      if (e < some) word[e / 2] |= u32{source[e]} << e % 2 * 16;
    ptx::st_shared_v4(to.address(row, piece), make_uint4(word[0], word[1], word[2], word[3]));
  }
}

// Adds the product of a chunk, [32, 32], to `sum`.
template <class S>
__device__ __forceinline__ void add_chunk(float (&sum)[2][4][4], tile::SharedTile<small_chunk> a,
                                          bool a_along_k, tile::SharedTile<small_chunk> b, bool b_along_k) {
  using T = tile::Terms<S, 1>;
#pragma unroll
  for (int k = 0; k < small_chunk / 16; ++k) {
    tile::Fragment left[2], right[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      left[h] = (a_along_k ? tile::operand_a<T>(a, 16 * h, k) : tile::operand_at<T>(a, k, h)).term[0];
      right[h] = (b_along_k ? tile::operand_bt<T>(b, 16 * h, k) : tile::operand_b<T>(b, k, h)).term[0];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
        tile::mma(sum[i][j], left[i], right[j / 2].x[j % 2 * 2], right[j / 2].x[j % 2 * 2 + 1], S());
  }
}

template <class S, int most>
__global__ void __launch_bounds__(small_threads)
    multiply_tiles(const __grid_constant__ GroupedGemms<most> list, int warp_bytes) {
  TG_DYNAMIC_SHARED(memory, 1024);
  let_next_kernel_begin();
  int nth = 0;
  if constexpr (most > 1)
    while (nth + 1 < list.count && list.at[nth + 1].first <= static_cast<int>(blockIdx.x)) ++nth;
  const GroupedGemm& p = list.at[nth];
  const int warp = threadIdx.x / 32, lane = tile::lane_id(), tile = static_cast<int>(blockIdx.x) - p.first,
            across = (p.n + small_tile - 1) / small_tile, i0 = tile / across * small_tile,
            j0 = tile % across * small_tile, chunks = (p.k + small_chunk - 1) / small_chunk;
  const u32 own = ptx::shared_address(memory) + warp * warp_bytes;
  const auto copy = [&](int chunk, u32 to) {
    copy_chunk({to}, p.a, chunk * small_chunk, p.k, i0, p.m);
    copy_chunk({to + operand_bytes}, p.b, chunk * small_chunk, p.k, j0, p.n);
  };
  // Four elements of y that the thread writes, and their addends.
  const int i = i0 + static_cast<int>(threadIdx.x) / 8, j = j0 + static_cast<int>(threadIdx.x) % 8 * 4;
  const bool writes = i < p.m && j < p.n;
  Words<S, 4> added;
  wait_for_kernel_before();
  if (writes && p.d && p.in_fours) added = *reinterpret_cast<const Words<S, 4>*>(p.d + i64{i} * p.d_step + j);

  float sum[2][4][4] = {};
  u32 at = own + 2 * operand_bytes, next = own;
#pragma unroll 1
  for (int chunk = warp - small_warps; chunk < chunks; chunk += small_warps) {
    if (chunk + small_warps < chunks) copy(chunk + small_warps, next);
    ptx::cp_async_commit();
    if (chunk >= 0) {
      ptx::cp_async_wait<1>();
      __syncwarp();  // copies of all lanes have arrived
      add_chunk<S>(sum, {at}, p.a.along_k, {at + operand_bytes}, p.b.along_k);
      __syncwarp();  // all lanes have read the copies
    }
    const u32 free = at;
    at = next, next = free;
  }
  const auto sums_of = [&](int w) { return reinterpret_cast<float*>(memory + w * warp_bytes); };
#pragma unroll
  for (int r = 0; r < 4; ++r)
#pragma unroll
    for (int c = 0; c < 4; ++c)
      *reinterpret_cast<float2*>(sums_of(warp) + (8 * r + lane / 4) * sums_row + 8 * c + lane % 4 * 2) =
          make_float2(sum[r / 2][c][r % 2 * 2], sum[r / 2][c][r % 2 * 2 + 1]);
  __syncthreads();
  if (!writes) return;
  float value[4] = {};
  const int place = static_cast<int>(threadIdx.x) / 8 * sums_row + static_cast<int>(threadIdx.x) % 8 * 4;
#pragma unroll
  for (int w = 0; w < small_warps; ++w)
    if (w < chunks) {
      const float4 more = *reinterpret_cast<const float4*>(sums_of(w) + place);
      value[0] += more.x, value[1] += more.y, value[2] += more.z, value[3] += more.w;
    }
  if (p.in_fours) {
    if (p.d) {
      float d[4];
      unpack<S>(added, d);
#pragma unroll
      for (int e = 0; e < 4; ++e) value[e] += d[e];
    }
    *reinterpret_cast<Words<S, 4>*>(p.y + i64{i} * p.y_step + j) = packed<S>(value);
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (j + e >= p.n) break;
      if (p.d) value[e] += widen(reinterpret_cast<const S*>(p.d)[i64{i} * p.d_step + j + e]);
      reinterpret_cast<S*>(p.y)[i64{i} * p.y_step + j + e] = narrow<S>(value[e]);
    }
  }
}

bool is_aligned(const void* p, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

// Returns the lines of a matrix whose axis `k_axis` is k. If no lines are contiguous, the step is 0.
Lines lines_of(const Arg& x, int k_axis) {
  const Layout& l = x.layout;
  const std::int64_t k = l.shape[k_axis], others = l.shape[1 - k_axis], of_k = l.strides[k_axis],
                     of_others = l.strides[1 - k_axis];
  const bool along_k = of_k == 1 && (of_others >= k || others == 1),
             across = of_others == 1 && (of_k >= others || k == 1);
  const std::int64_t step = along_k ? of_others : of_k;
  Lines r{reinterpret_cast<const unsigned short*>(x.data), 0, along_k, false};
  if ((!along_k && !across) || step < 1 || step > INT_MAX) return r;
  r.step = static_cast<int>(step);
  r.in_pieces = is_aligned(x.data, 16) && step % 8 == 0 && (along_k ? k : others) % 8 == 0;
  return r;
}

i64 tiles_of(const Layout& y) {
  return (y.shape[0] + small_tile - 1) / small_tile * ((y.shape[1] + small_tile - 1) / small_tile);
}

// Whether d can be the addend. It must have the result's shape or be a single row.
bool is_addend(const Arg& d, const Arg& y) {
  const Layout &l = d.layout, &of_y = y.layout;
  const int last = l.rank() - 1;
  if (d.dtype != y.dtype || last < 0 || last > 1 || l.shape[last] != of_y.shape[1]) return false;
  if (l.strides[last] != 1 && l.shape[last] > 1) return false;
  return last == 0 || l.shape[0] == 1 ||
         (l.shape[0] == of_y.shape[0] && l.strides[0] >= 0 && l.strides[0] <= INT_MAX);
}

GroupedGemm product_of(const Call& c) {
  const Layout& y = c.out[0].layout;
  GroupedGemm p{};
  p.a = lines_of(c.in[0], 1), p.b = lines_of(c.in[1], 0);
  p.m = static_cast<int>(y.shape[0]), p.n = static_cast<int>(y.shape[1]);
  p.k = static_cast<int>(c.in[0].layout.shape[1]);
  p.y = reinterpret_cast<unsigned short*>(c.out[0].data), p.y_step = static_cast<int>(y.strides[0]);
  p.in_fours = p.n % 4 == 0 && p.y_step % 4 == 0 && is_aligned(p.y, 8);
  if (c.in.size() == 3) {
    const Arg& d = c.in[2];
    p.d = reinterpret_cast<const unsigned short*>(d.data);
    if (d.layout.rank() == 2 && d.layout.shape[0] > 1) p.d_step = static_cast<int>(d.layout.strides[0]);
    p.in_fours = p.in_fours && p.d_step % 4 == 0 && is_aligned(p.d, 8);
  }
  return p;
}

struct GroupedGemmPlan final : KernelPlan {
  std::vector<GroupedGemm> products;
  i64 blocks = 0;
  int longest = 0;  // largest k
  DType type;

  explicit GroupedGemmPlan(std::span<const Call> calls) : type(calls[0].out[0].dtype) {
    for (const Call& c : calls) {
      GroupedGemm& p = products.emplace_back(product_of(c));
      p.first = static_cast<int>(blocks);
      blocks += tiles_of(c.out[0].layout);
      longest = std::max(longest, p.k);
    }
  }
  void launch(const Stream& s, const Call&) const override;
  std::string choice(const Call&) const override {
    return std::to_string(products.size()) + " small products in one kernel";
  }
};

template <int most>
void launch_list(const Stream& s, const GroupedGemmPlan& plan) {
  GroupedGemms<most> list{static_cast<int>(plan.products.size()), {}};
  std::copy(plan.products.begin(), plan.products.end(), list.at);
  const int stages = plan.longest > small_warps * small_chunk ? 2 : 1,
            warp_bytes = std::max(stages * 2 * operand_bytes, sums_bytes);
  const LaunchShape shape(static_cast<unsigned>(plan.blocks), small_threads,
                          static_cast<std::size_t>(small_warps * warp_bytes));
  plan.type == DType::bf16 ? launch_early(s, shape, multiply_tiles<__nv_bfloat16, most>, list, warp_bytes)
                           : launch_early(s, shape, multiply_tiles<__half, most>, list, warp_bytes);
}

void GroupedGemmPlan::launch(const Stream& s, const Call&) const {
  if (blocks == 0) return;
  products.size() == 1 ? launch_list<1>(s, *this) : launch_list<most_products>(s, *this);
}

// Whether the same launch can compute the GEMM and the GEMMs `before` it. The GEMM must not read or overwrite
// their results, and must not overwrite their operands. The launch must have room for it.
bool is_independent(const Call& product, std::span<const Call> before) {
  const auto is_separate = [&](const Call& other) {
    return !meets(product.out[0], other.in) && !meets(product.out[0], other.out) &&
           !meets(other.out[0], product.in) && other.out[0].dtype == product.out[0].dtype;
  };
  return before.size() < most_products && std::all_of(before.begin(), before.end(), is_separate);
}

// Returns the leading steps that are small GEMMs and do not depend on each other.
std::vector<Call> independent_products(const Upcoming& next) {
  std::vector<Call> calls;
  for (std::size_t i = 0; i < next.steps.size() && next.steps[i].op->product; ++i) {
    const Call c = next.call(i);
    if (!is_grouped_gemm(c) || !is_independent(c, calls) || next.is_next(is_epilogue_of, i + 1)) break;
    calls.push_back(c);
  }
  return calls;
}

}  // namespace

bool is_grouped_gemm(const Call& c) {
  const Arg& y = c.out[0];
  if (!c.gpu.hopper || c.batch_invariant || (y.dtype != DType::bf16 && y.dtype != DType::f16)) return false;
  for (const Arg* x : {&c.in[0], &c.in[1], &y})
    if (x->dtype != y.dtype || x->layout.rank() != 2) return false;
  const Layout& l = y.layout;
  const std::int64_t m = l.shape[0], n = l.shape[1], k = c.in[0].layout.shape[1];
  constexpr std::int64_t longest = 1024;
  if (m == 0 || n == 0 || k == 0 || k > longest || m > INT_MAX || n > INT_MAX) return false;
  if ((l.strides[1] != 1 && n > 1) || l.strides[0] < n || l.strides[0] > INT_MAX) return false;
  const Lines a = lines_of(c.in[0], 1), b = lines_of(c.in[1], 0);
  const i64 tiles = tiles_of(l), processors = c.gpu.processors;
  const bool few = tiles <= 2 * processors, uneven = n % 8 != 0 && a.in_pieces && b.in_pieces;
  return (few || (uneven && tiles <= 16 * processors)) && a.step > 0 && b.step > 0 &&
         (c.in.size() < 3 || is_addend(c.in[2], y)) &&
         ((few && n % 8 != 0) || !c.written || !is_faster_by_rows_gemm(c));
}

void multiply_small(const Stream& s, const Call& product) {
  GroupedGemmPlan({&product, 1}).launch(s, product);
}

extern const FusionRule grouped_gemm_rule{
    "small products in one kernel",
    [](const Upcoming& next) {
      const std::size_t products = independent_products(next).size();
      return FusionMatch{products > 1 ? products : 0};
    },
    [](const Upcoming& next, const FusionMatch&) -> PlanPtr {
      return std::make_unique<GroupedGemmPlan>(independent_products(next));
    }};

}  // namespace tg::cuda
