// Decoding of latent attention (MLA with absorbed projections [Stratos, FlashAttention §3.2]) on tensor
// cores. Keys have up to 576 elements, and the first elements (up to 512) are also the values. Such a row is
// read once. It is too long for the registers of one warp. The warps of a block therefore share a tile of 64
// keys and 16 rows:
//
//   Aᵀ = K·Qᵀ                               each warp: 16 keys and 8 rows
//   c ← max(c, A.max), P = exp(A − c)       over all keys, through shared memory
//   Gᵀ ← exp(c_old − c)·Gᵀ + Vᵀ·Pᵀ          each warp: 64 columns of V and all rows
//
// Each range stores O, c and π, and a second kernel merges them.
#include "backends/cuda/attention/decoding/decoding_loader.cuh"
#include "backends/cuda/attention/decoding/decoding_merge.cuh"
#include "backends/cuda/attention/kernels.h"
#include "backends/cuda/attention/stages/checks.cuh"
#include "backends/cuda/attention/stages/visible_keys.cuh"
#include "backends/cuda/tile/ptx_sm90.cuh"
#include "backends/cuda/tile/right_operand.cuh"

namespace tg::cuda::attention {

namespace decoding {

// Prefetches tiles, item after item. A warp copies eight rows. A lane copies every eighth 16-byte piece of
// two rows. It also looks up the page of one of the eight rows, one tile ahead.
template <class S>
struct LatentLoader {
  using At = LatentShape;
  static constexpr int rows = At::keys / At::warps, row_bytes = At::D * 2;
  const AttentionCall& x;
  Cursor<At, OfLatents> next;
  LatentRowAddress place;  // location of a key of the next tile
  const int first_row = threadIdx.x / 32 * rows, row = lane_id() / 8, piece = lane_id() % 8;  // the lane's
  u32 to, end;  // the lane's destination in the tile; its value at the end of the ring
  std::uint64_t once = ptx::evict_first();

  __device__ __forceinline__ LatentLoader(const AttentionCall& x, const Items<OfLatents>& items, u32 ring)
      : x(x), next{items, 0} {
    to = SharedTile<At::D>{ring}.address(first_row + row, piece);
    end = to + At::stages * At::tile;
    find(blockIdx.x);
  }
  // Starts copying the next tile and commits the copies as a group. After the last tile, the group is empty.
  __device__ __forceinline__ void prefetch() {
    if (!next.at_end()) {
      const u32 begin = place.begin<S>(x, x.k);
#pragma unroll
      for (int n = 0; n < rows; n += rows / 2) {
        const int r = row + n;
        const bool seen = next.sees(first_row + r);
        const S* const from = at_piece<S>(x.k, __shfl_sync(~0u, begin, r) + piece);
        const u32 address = (to ^ n * 16) + n * row_bytes;
#pragma unroll
        for (int c = 0; c < At::D / 64; ++c)
          ptx::cp_async_16(address + c * 128, from + c * 64, seen && piece * 8 + c * 64 < x.d ? 16 : 0, once);
      }
      next.key += At::keys;
      if (next.key < next.keys.to)
        look_up();
      else
        find(next.items.after(next.item, At::streams));
    }
    commit();
    to += At::tile;
    if (to == end) to -= At::stages * At::tile;
  }

 private:
  __device__ __forceinline__ void find(int n) {
    next.find(n, [&](const Item& at) {
      place.enter(at);
      look_up();
    });
  }
  __device__ __forceinline__ void look_up() {
    place.look_up(x, next.key + first_row + lane_id() % rows, next.keys);
  }
};

// Data that the warps of a block share for a tile. For each row and each group of 16 keys, `top` is the
// largest score, and `sum` is π at the end. For each row, `by` is the factor of G, and `seen` has the visible
// keys.
struct LatentRows : OfWarps {
  using At = LatentShape;
  static_assert(At::groups == warps && At::rows == rows);
  float by[At::rows];
  VisibleKeys<At::rows> seen;
};

template <class S, Options options>
__global__ void __launch_bounds__(LatentShape::threads)
    decode_latents(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work,
                   const __grid_constant__ Plan<OfLatents> plan, Faults faults) {
  using At = LatentShape;
  using T = Terms<S, 1>;
  TG_DYNAMIC_SHARED(memory, 1024);
  begin_early();
  const Items<OfLatents> items(x, plan.ranges, plan.tiles, reinterpret_cast<Entry*>(memory + At::entries));
  LatentRows& shared = *reinterpret_cast<LatentRows*>(memory + At::of_rows);
  const u32 ring = shared_address(memory);
  const SharedTile<At::keys> p{ring + At::p};  // P [rows, keys]
  const int warp = threadIdx.x / 32, group = warp % At::groups, row0 = warp / At::groups * 8,
            row = row0 + lane_column();  // the thread's first row of P
  const Score<S> score(plan.factor, plan.cap);
  const float factor = options == any ? 1 : score.factor;
  LatentLoader<S> loader(x, items, ring);
  loader.prefetch();
  if (plan.tiles.first == 0) check_places(x, faults, threadIdx.x, At::threads);  // while it is loading
  int slot = 0;
#pragma unroll 1
  for (int n = blockIdx.x; n < items.count; n += gridDim.x) {
    const Item item = items.at(n);
    const Band band(x, sequence_of_query(x, item.tile.b, 0));
    if (warp == 0) shared.seen.set_of_groups(band, group_of(x), item.tile.row0, item.tile.rows);
    RightOperand<8, At::D> q;
    load(
        q, [&](int r) { return query<S>(x, item, row0 + r); }, x.d);
    Accumulator<At::D_v / At::warps, At::rows> o;
    o.fill(0);
    SoftmaxState<QueriesAsColumns<8>> softmax;
#pragma unroll 1
    for (int key = item.keys.from / At::keys * At::keys; key < item.keys.to; key += At::keys) {
      tile::wait();
      __syncthreads();  // the tile has arrived, and all warps have finished with the previous one
      loader.prefetch();
      const SharedTile<At::D> k{ring + slot * At::tile};
      slot = slot + 1 < At::stages ? slot + 1 : 0;
      Accumulator<16, 8> s;
      s.fill(0);
      mma_ABt<S>(s, SharedTile<At::D>{k.base + group * 16 * At::D * 2}, q);
      if constexpr (options == any) score.apply(s);
      const int key0 = key + 16 * group;
      if (!covers(item.every, key0, 16)) mask<false>(s, shared.seen, 0, row0, key0);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float most = softmax.most(s, c);
        if (lane_row() == 0) shared.top[group][row + c] = most;
      }
      ptx::bar_sync(1 + row0 / 8, At::threads / 2);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float by = softmax.move(c, shared.most(row + c, softmax.top[c]), factor);
        if (group == 0 && lane_row() == 0) shared.by[row + c] = by;
#pragma unroll
        for (int r = 0; r < 2; ++r) s(r, c) = softmax.add(c, s(r, c), factor);
      }
      const RightOperand<8, 16> rounded = right_operand<S>(s);
#pragma unroll
      for (int half = 0; half < 2; ++half)
        ptx::st_shared(p.address(row0 + lane_row(), 2 * group + half) + lane_column() * 2,
                       rounded.x[0][0][half]);
      __syncthreads();
#pragma unroll
      for (int c = 0; c < o.columns; ++c) tile::scale_column(o, c, shared.by[lane_column() + o.column(c)]);
#pragma unroll
      for (int step = 0; step < At::keys / 16; ++step) {
        const SplitFragment<T> right = operand_bt<T>(p, 0, step);
#pragma unroll
        for (int m = 0; m < o.groups; ++m) {
          const SplitFragment<T> left = operand_at<T>(k, step, warp * o.groups + m);
#pragma unroll
          for (int half = 0; half < 2; ++half)
            mma(o.x[m][half], left.term[0], right.term[0].x[2 * half], right.term[0].x[2 * half + 1], S());
        }
      }
    }
    // Stores O, c and π of the range.
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float all = softmax.all(c);
      if (lane_row() == 0) shared.sum[group][row + c] = all, shared.top[group][row + c] = softmax.top[c];
    }
    __syncthreads();
    const Partial to = partial(x, work, plan.tiles, item, item.range);
#pragma unroll
    for (int c = 0; c < o.columns; ++c) {
      const int i = lane_column() + o.column(c);
      const float pi = shared.pi(i), by = pi > 0 ? tile::reciprocal(pi) : pi;
      if (i >= item.tile.rows) continue;
#pragma unroll
      for (int r = 0; r < o.rows; ++r) {
        const int column = warp * (At::D_v / At::warps) + lane_row() + o.row(r);
        if (column < x.dv) *to.at(i, column) = o(r, c) * by;
      }
      if (warp == 0 && lane_row() == 0) to.of_row[i] = {shared.top[0][i], pi};
    }
    __syncthreads();  // the next item must not overwrite shared data earlier
  }
}

// Merges the ranges of each row of each tile, with one block per row.
template <class S>
__global__ void __launch_bounds__(LatentShape::D_v / 4)
    merge_latents(const __grid_constant__ AttentionCall x, const __grid_constant__ Workspace work,
                  const __grid_constant__ Plan<OfLatents> plan) {
  wait_for_kernel_before();
  const int rows = plan.tiles.rows, row = blockIdx.x % rows, at = blockIdx.x / rows;
  Item item{};
  item.nth_tile = at / x.Hk, item.head = at % x.Hk, item.first_head = item.head * group_of(x);
  item.tile = tile_at<OfLatents>(x, plan.tiles, item.nth_tile);
  const int column = static_cast<int>(threadIdx.x) * 4;
  if (row >= item.tile.rows || column >= x.dv) return;
  const Entry e{0, item.tile.some_of(x, Band(x, sequence_of_query(x, item.tile.b, 0)))};
  put<S>(x, item, row, column,
         merge_ranges(partial(x, work, plan.tiles, item, 0), e.first(plan.ranges), e.last(plan.ranges) + 1,
                      row, column, units_of(x).exponent));
}

}  // namespace decoding

void launch_latent_decoding(const Stream& s, const AttentionCall& call, const Workspace& work) {
  using namespace decoding;
  const AttentionCall x = in_pages(call);
  with_16_bits(x.type, [&](auto zero) {
    with_constant<none, any>(has_plain_scores(x) ? none : any, [&](auto options) {
      for_each_launch<OfLatents>(x, [&](const Plan<OfLatents>& plan) {
        using S = decltype(zero);
        const i64 pairs = i64{plan.tiles.count} * x.Hk;
        launch_early(s,
                     {blocks_for(std::min<i64>(pairs * work.parts, s.gpu.processors), 1),
                      LatentShape::threads, static_cast<std::size_t>(LatentShape::bytes)},
                     decode_latents<S, options>, x, work, plan, s.faults);
        launch_early(s, {blocks_for(pairs * rows_of_tile(x), 1), LatentShape::D_v / 4}, merge_latents<S>, x,
                     work, plan);
      });
    });
  });
}

}  // namespace tg::cuda::attention
