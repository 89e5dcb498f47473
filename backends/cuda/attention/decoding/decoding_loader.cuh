// Prefetches a streaming warp's slices of keys and values, item after item, from a contiguous or paged cache.
// Each lane copies 16-byte pieces of every few rows.
#pragma once

#include "backends/cuda/attention/decoding/decoding_items.cuh"
#include "backends/cuda/attention/decoding/decoding_shape.h"
#include "backends/cuda/kernels/elements.cuh"
#include "backends/cuda/tile/pipeline_sm80.cuh"
#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::attention::decoding {

using namespace tile;

// First key of a stream's first slice of `keys`. Slice n belongs to stream n % streams, so the stream of a
// key does not depend on other keys.
template <class At>
__device__ __forceinline__ int first_key(KeyRange keys, int stream) {
  const int first = keys.from / At::keys;
  return (first + ((stream - first) & (At::streams - 1))) * At::keys;
}

// First key of an item's slices for a stream, and the step to its next slice. One warp processes all slices
// of a short tile. The slices are between two adjacent multiples of At::step, so they are in the order of the
// streams.
template <class At>
__device__ __forceinline__ int first_key(const Item& item, int stream) {
  return item.is_short ? item.keys.from / At::keys * At::keys : first_key<At>(item.keys, stream);
}
template <class At>
__device__ __forceinline__ int step_of(const Item& item) {
  return item.is_short ? At::keys : At::step;
}

// Position of a stream in its items.
template <class At, class Cache>
struct Cursor {
  const Items<Cache>& items;
  const int stream;
  int item, key, step;  // the next slice's item and first key; the step to the slice after it
  KeyRange keys;        // of the item

  __device__ __forceinline__ bool at_end() const { return item >= items.count; }
  // Whether some query sees row r of the slice. Other rows become zeros.
  __device__ __forceinline__ bool sees(int r) const { return key + r >= keys.from && key + r < keys.to; }
  // Finds the stream's first slice in its items n …, and calls begin(item) for its item.
  template <class Begin>
  __device__ __forceinline__ void find(int n, Begin&& begin) {
    for (item = n; !at_end(); item = items.after(item, At::streams)) {
      const Item at = items.at(item);
      keys = at.keys, key = first_key<At>(at, stream), step = step_of<At>(at);
      if (key >= keys.to) continue;
      begin(at);
      return;
    }
  }
};

// Common part of the loaders: the assignment of lanes and the destination of their pieces. 16-bit tiles are
// swizzled for tensor cores (SharedTile). f32 rows are contiguous, because a warp reads whole rows.
template <class S, class At>
struct Copies {
  static constexpr int each = 16 / sizeof(S), pieces = At::D / each;  // elements per piece; pieces per row
  static constexpr int lanes = pieces < 32 ? pieces : 32, rows = 32 / lanes;  // per row; rows copied together
  static constexpr bool permuted = sizeof(S) == 2;
  u32 to, end;  // the lane's destination in the next slice; its value at the end of the ring
  std::uint64_t once = ptx::evict_first();

  __device__ __forceinline__ explicit Copies(u32 ring) {
    to = permuted ? SharedTile<At::D>{ring}.address(row(), piece()) : ring + (row() * pieces + piece()) * 16;
    end = to + At::ring;
  }
  static __device__ __forceinline__ int row() { return lane_id() / lanes; }
  static __device__ __forceinline__ int piece() { return lane_id() % lanes; }  // its first piece of a row
  // copy_keys() and copy_values() copy rows n … n + rows − 1 of a slice.
  __device__ __forceinline__ void copy_keys(int n, const S* from, bool seen, int size) const {
    copy(address(n), from, seen, size);
  }
  __device__ __forceinline__ void copy_values(int n, const S* from, bool seen, int size) const {
    copy(address(n) + At::half, from, seen, size);
  }
  // Commits the copies of this slice as a group.
  __device__ __forceinline__ void end_slice() {
    commit();
    if constexpr (At::stages == 1) return;
    to += At::stage;
    if (to == end) to -= At::ring;
  }

 private:
  __device__ __forceinline__ u32 address(int n) const {
    return (permuted ? to ^ n % 8 * 16 : to) + n * pieces * 16;
  }
  __device__ __forceinline__ void copy(u32 address, const S* from, bool seen, int size) const {
#pragma unroll
    for (int p = 0; p < pieces; p += lanes)
      ptx::cp_async_16(address + p * 16, from + p * each, seen && (piece() + p) * each < size ? 16 : 0, once);
  }
};

// Location of a sequence's key in the pool. Each lane looks up one key. Later it broadcasts the result to the
// lanes that copy the row of this key.
struct RowAddress {
  int b, head, number, in_page;  // sequence, key head, page number, row of the page

  __device__ __forceinline__ void enter(const Item& item) { b = item.tile.b, head = item.head; }
  // Looks up key j. Table entries of keys that no row sees are not read.
  __device__ __forceinline__ void look_up(const AttentionCall& x, int j, KeyRange keys) {
    const bool seen = j >= keys.from && j < keys.to;
    in_page = seen ? j % x.page : 0;
    number = seen ? __ldg(x.table + i64(b) * x.pages + j / x.page) : 0;
  }
  // Location in units of 16 bytes, which fits in 32 bits (decoding.cpp). Invalid page numbers are reported
  // elsewhere.
  template <class S>
  __device__ __forceinline__ u32 begin(const AttentionCall& x, const AttentionCall::TensorView& a) const {
    constexpr int each = 16 / sizeof(S);
    const u32 page = static_cast<u32>(number) < static_cast<u32>(x.pool) ? number : 0;
    return page * static_cast<u32>(a.batch / each) + in_page * static_cast<u32>(a.row / each) +
           head * static_cast<u32>(a.head / each);
  }
};
// A RowAddress that also supports a contiguous cache. Each sequence is then one page (in_pages()).
struct LatentRowAddress : RowAddress {
  __device__ __forceinline__ void look_up(const AttentionCall& x, int j, KeyRange keys) {
    if (x.table) return RowAddress::look_up(x, j, keys);
    number = b, in_page = j >= keys.from && j < keys.to ? j : 0;
  }
};
template <class S>
__device__ __forceinline__ const S* at_piece(const AttentionCall::TensorView& a, u32 piece) {
  return static_cast<const S*>(a.data) + i64(piece) * static_cast<int>(16 / sizeof(S));
}

// Loader of contiguous and paged caches. Pages may have any number of keys. If pages consist of whole slices,
// the lanes look up the pages of 32 slices together. A lane's rows then have the same distance as in a
// contiguous cache. This hides the latency of the lookup. Under load, a lookup takes longer than a slice.
// Otherwise the rows of a slice are looked up individually, one slice ahead. If values are the first columns
// of keys, they are read only once.
template <class S, class At, class Cache>
struct Loader : Copies<S, At> {
  static constexpr bool in_pages = std::is_same_v<Cache, InPages>;
  using Copies<S, At>::row, Copies<S, At>::piece, Copies<S, At>::rows, Copies<S, At>::each;
  const AttentionCall& x;
  const Cache cache;
  Cursor<At, Cache> next;
  const S *k, *v;    // contiguous: the lane's piece of the next slice's first rows
  RowAddress place;  // paged: location of the lane's slice, or of the lane's row in the next slice
  int nth;           // next one of the slices that have been looked up

  __device__ __forceinline__ Loader(const AttentionCall& x, Cache cache, const Items<Cache>& items,
                                    int stream, u32 ring)
      : Copies<S, At>(ring), x(x), cache(cache), next{items, stream} {
    find(items.first(stream));
  }
  // Shared-memory offset of a stage's values.
  __device__ __forceinline__ u32 values(u32 stage) const {
    return cache.values_in_keys ? stage : stage + At::half;
  }
  // Starts copying the next slice and commits the copies as a group. After the last slice, the group is
  // empty.
  __device__ __forceinline__ void prefetch() {
    if (!next.at_end()) {
      if constexpr (!in_pages) {
        copy_slice(k, v);
      } else if (has_whole_slices()) {
        RowAddress first = place;
        first.number = __shfl_sync(~0u, place.number, nth);
        first.in_page = __shfl_sync(~0u, place.in_page, nth) + row();
        copy_slice(at_piece<S>(x.k, first.template begin<S>(x, x.k) + piece()),
                   at_piece<S>(x.v, first.template begin<S>(x, x.v) + piece()));
      } else {
        const u32 k = place.begin<S>(x, x.k), v = place.begin<S>(x, x.v);
#pragma unroll
        for (int n = 0; n < At::keys; n += rows) {
          const int r = row() + n;
          copy_row(n, at_piece<S>(x.k, __shfl_sync(~0u, k, r) + piece()),
                   cache.values_in_keys ? nullptr : at_piece<S>(x.v, __shfl_sync(~0u, v, r) + piece()));
        }
      }
      next.key += next.step;
      if constexpr (!in_pages) k += next.step * x.k.row, v += next.step * x.v.row;
      if (next.key >= next.keys.to)
        find(next.items.after(next.item, At::streams));
      else if (in_pages && (++nth == 32 || !has_whole_slices()))
        look_up();
    }
    this->end_slice();
  }

 private:
  __device__ __forceinline__ void copy_row(int n, const S* from_k, const S* from_v) {
    this->copy_keys(n, from_k, next.sees(row() + n), x.d);
    if (!cache.values_in_keys) this->copy_values(n, from_v, next.sees(row() + n), x.dv);
  }
  __device__ __forceinline__ void copy_slice(const S* from_k, const S* from_v) {
#pragma unroll
    for (int n = 0; n < At::keys; n += rows, from_k += rows * x.k.row, from_v += rows * x.v.row)
      copy_row(n, from_k, from_v);
  }
  __device__ __forceinline__ void find(int n) {
    next.find(n, [&](const Item& at) {
      if constexpr (in_pages) {
        place.enter(at);
        look_up();
      } else {
        k = x.k.at<S>(at.tile.b, at.head) + (next.key + row()) * x.k.row + piece() * each;
        v = x.v.at<S>(at.tile.b, at.head) + (next.key + row()) * x.v.row + piece() * each;
      }
    });
  }
  __device__ __forceinline__ void look_up() {
    nth = 0;
    if (has_whole_slices())  // the slice's table entry is valid, because some of its keys are visible
      place.look_up(x, next.key + lane_id() * next.step, {0, next.keys.to});
    else
      place.look_up(x, next.key + lane_id() % At::keys, next.keys);
  }
  __device__ __forceinline__ bool has_whole_slices() const {
    return x.page % At::keys == 0;
  }
};

}  // namespace tg::cuda::attention::decoding
