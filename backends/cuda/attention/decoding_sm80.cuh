// Decoding on tensor cores (sm_80 and later). A block goes from item to item (decoding_items.cuh). Its
// streaming warps take slices of 16 or 32 keys in turn:
//
//   Aᵀ = K·Qᵀ, c ← max(c, A.max), π ← exp(c_old − c)·π + exp(A − c).sum
//   Gᵀ ← exp(c_old − c)·Gᵀ + Vᵀ·exp(Aᵀ − c)
//
// Keys and values are left operands, of 16 rows; queries are right ones, of 8: all heads that share a key
// head, with little padding. A stream has its own ring of slices, waits for no other warp while it goes
// through an item, and asks for the first slice of the next item before it has finished this one. At the end
// it leaves c, π and Gᵀ to the writing warps (decoding_merge.cuh), which wait for memory while it goes on.
#pragma once

#include "backends/cuda/attention/decoding_merge.cuh"
#include "backends/cuda/attention/visible_keys.cuh"
#include "backends/cuda/tile/pipeline_sm80.cuh"
#include "backends/cuda/tile/ptx_sm90.cuh"
#include "backends/cuda/tile/right_operand.cuh"

namespace tg::cuda::attention::decoding {

using namespace tile;

// Of a stream's first slice of these keys.
template <class At>
__device__ __forceinline__ int first_key(KeyRange keys, int stream) {
  return (keys.from / At::keys + stream) * At::keys;
}

// Row r of an item's queries: those of the first head, then those of the second.
template <class S>
__device__ __forceinline__ const S* query(const Plan& x, const Item& item, int r) {
  return x.q.at<S>(item.b, item.head * (x.H / x.Hk) + r / x.L) + r % x.L * x.q.row;
}
template <class S, class At>
__device__ __forceinline__ void load_queries(RightOperand<At::rows, At::D>& q, const Plan& x,
                                             const Item& item) {
  load(q, [&](int r) { return r < x.rows() ? query<S>(x, item, r) : nullptr; }, x.d);
}
// The same to the first-level cache, a line for each lane.
template <class S, class At>
__device__ __forceinline__ void prefetch_queries(const Plan& x, const Item& item) {
  constexpr int line = 64, lines = At::D / line;
  const int row = lane_id() / lines, column = lane_id() % lines * line;
  if (row < x.rows() && column < x.d) ptx::prefetch_line(query<S>(x, item, row) + column);
}

// Asks for a stream's slices, item after item. Each lane has a piece of 16 bytes of every few rows.
template <class S, class At>
struct Loader {
  static constexpr int pieces = At::D / 8, rows = 32 / pieces;  // of a row; that the lanes have at a time
  const Plan& x;
  const Items& items;
  int stream, item, key;  // of the next slice
  KeyRange keys;          // of its item
  const S *k, *v;         // the lane's piece of the slice's first rows
  u32 to, end;            // where it goes; the end of the ring for it
  std::uint64_t once = ptx::evict_first();

  __device__ __forceinline__ Loader(const Plan& x, const Items& items, int stream, u32 ring)
      : x(x), items(items), stream(stream) {
    to = SharedTile<At::D>{ring}.address(row(), piece());
    end = to + At::ring;
    find(blockIdx.x);
  }
  // Copies of the next slice become a group; an empty one if there is none.
  __device__ __forceinline__ void ask() {
    if (item < items.count) {
      const S *from_k = k, *from_v = v;
#pragma unroll
      for (int n = 0; n < At::keys; n += rows, from_k += rows * x.k.row, from_v += rows * x.v.row) {
        const int j = key + row() + n;
        const bool seen = j >= keys.from && j < keys.to;  // others become zeros, whatever memory holds
        const u32 address = (to ^ n % 8 * 16) + n * pieces * 16;
        ptx::cp_async_16(address, from_k, seen && piece() * 8 < x.d ? 16 : 0, once);
        ptx::cp_async_16(address + At::half, from_v, seen && piece() * 8 < x.dv ? 16 : 0, once);
      }
      constexpr int step = At::streams * At::keys;
      key += step, k += step * x.k.row, v += step * x.v.row;
      if (key >= keys.to) find(item + gridDim.x);
    }
    commit();
    to += At::stage;
    if (to == end) to -= At::ring;
  }

 private:
  static __device__ __forceinline__ int row() { return lane_id() / pieces; }
  static __device__ __forceinline__ int piece() { return lane_id() % pieces; }
  // The stream's first slice of the items from n on.
  __device__ __forceinline__ void find(int n) {
    for (item = n; item < items.count; item += gridDim.x) {
      const Item at = items.at(item);
      keys = at.keys, key = first_key<At>(keys, stream);
      if (key >= keys.to) continue;
      k = x.k.at<S>(at.b, at.head) + (key + row()) * x.k.row + piece() * 8;
      v = x.v.at<S>(at.b, at.head) + (key + row()) * x.v.row + piece() * 8;
      prefetch_queries<S, At>(x, at);
      return;
    }
  }
};

// c, π and G of a stream, [rows, D].
template <class At>
__device__ __forceinline__ void leave(unsigned char* memory, int stream, int rows,
                                      ColumnSoftmax<At::rows>& softmax,
                                      Accumulator<At::D, At::rows>& o) {
  auto* const tops = reinterpret_cast<float2*>(memory + At::tops) + stream * rows;
  auto* const sums = reinterpret_cast<float*>(memory + At::sums(rows)) + stream * rows * At::row;
#pragma unroll
  for (int c = 0; c < o.columns; ++c) {
    const int query = lane_column() + o.column(c);
    const float sum = column_sum(softmax.sum[c]);
    if (query >= rows) continue;
    if (lane_row() == 0) tops[query] = {softmax.top[c], sum};
#pragma unroll
    for (int r = 0; r < o.rows; ++r) sums[query * At::row + lane_row() + o.row(r)] = o(r, c);
  }
}

// A streaming warp, over all items of the block.
template <class S, class At, Options options>
__device__ void stream_keys(const Plan& x, const Items& items, unsigned char* memory, int stream) {
  const u32 ring = shared_address(memory) + stream * At::ring;
  auto& seen = reinterpret_cast<SeenKeys<At::rows>*>(memory + At::seen)[stream];
  const Score<S> score(x.factor, x.cap);
  const float factor = options == any ? 1 : score.factor;
  Loader<S, At> loader(x, items, stream, ring);
#pragma unroll
  for (int n = 1; n < At::stages; ++n) loader.ask();
  RightOperand<At::rows, At::D> q;
  Item item = items.at(blockIdx.x);
  load_queries<S, At>(q, x, item);
  int slot = 0, to_writer = left;
#pragma unroll 1
  for (int n = blockIdx.x; n < items.count; n += gridDim.x) {
    const Band band = x.band(item.b);
    __syncwarp();  // no lane needs those of the item before
    seen.set_of_heads(band, x.L, x.rows());
    __syncwarp();
    KeyRange every = band.every_of(0, x.L - 1);
    every = {max(every.from, item.keys.from), min(every.to, item.keys.to)};
    Accumulator<At::D, At::rows> o;
    o.fill(0);
    ColumnSoftmax<At::rows> softmax;
#pragma unroll 1
    for (int key = first_key<At>(item.keys, stream); key < item.keys.to; key += At::streams * At::keys) {
      ptx::cp_async_wait<At::stages - 2>();
      __syncwarp();
      loader.ask();
      const SharedTile<At::D> k{ring + slot * At::stage}, v{k.base + At::half};
      slot = slot + 1 < At::stages ? slot + 1 : 0;
      Accumulator<At::keys, At::rows> s;
      s.fill(0);
      mma_ABt<S>(s, k, q);  // Aᵀ
      if constexpr (options == any) score.apply(s);
      if (!covers(every, key, At::keys)) mask<false>(s, seen, 0, 0, key);
      softmax.step(s, o, factor);              // c, π, Gᵀ rescaled, P = exp(A − c)
      mma_AtBt<S>(o, v, right_operand<S>(s));  // Gᵀ += Vᵀ·Pᵀ
    }
    // Queries of the next item arrive while this one's sums are left.
    const int next = n + static_cast<int>(gridDim.x);
    if (next < items.count) {
      item = items.at(next);
      load_queries<S, At>(q, x, item);
    }
    if (!items.alone()) ptx::bar_sync(may_leave + stream, 64);
    leave<At>(memory, stream, x.rows(), softmax, o);
    if (!items.alone()) ptx::bar_arrive(to_writer, 32 * (At::streams + 1));
    to_writer = to_writer % At::writers + left;
  }
}

template <class S, class At, Options options>
__global__ void __launch_bounds__(At::threads, options == none ? At::blocks : 1)
    decode(const __grid_constant__ Plan x) {
  TG_DYNAMIC_SHARED(memory, 1024);
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  ptx::let_next_kernel_begin();
  ptx::wait_for_kernel_before();
#endif
  if (threadIdx.x == 0) reinterpret_cast<Pending*>(memory + At::pending)->count = 0;
  const Items items(x, reinterpret_cast<Entry*>(memory + At::entries));
  if (static_cast<int>(blockIdx.x) >= items.count) return;
  const int warp = threadIdx.x / 32;
  if (warp < At::streams)
    stream_keys<S, At, options>(x, items, memory, warp);
  else if (!items.alone())
    Writer<S, At>(x, items, memory).run(warp - At::streams);
  __syncthreads();
  if (items.alone()) {
    Writer<S, At>(x, items, memory).run_all();
    __syncthreads();
  }
  Writer<S, At>(x, items, memory).merge_pending();
}

template <class S, class At, Options options>
void launch(const Stream& s, const AttentionCall& x, const Workspace& work) {
  const i64 items = x.B * x.Hk * work.parts, places = i64{s.gpu.processors} * At::blocks;
  LaunchShape shape{blocks_for(std::min(items, places), 1), At::threads,
                    static_cast<std::size_t>(At::bytes(rows_of(x)))};
  shape.early = s.gpu.hopper;
  launch_kernel(s, shape, decode<S, At, options>, Plan(x, work));
}

}  // namespace tg::cuda::attention::decoding
