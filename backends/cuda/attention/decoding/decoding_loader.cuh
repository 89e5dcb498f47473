// How a streaming warp of decoding asks for its slices of keys and values, item after item: of a cache in one
// piece, or in pages. Each lane copies a piece of 16 bytes of every few rows.
#pragma once

#include "backends/cuda/attention/decoding/decoding_items.cuh"
#include "backends/cuda/attention/decoding/decoding_shape.h"
#include "backends/cuda/kernels/elements.cuh"
#include "backends/cuda/tile/pipeline_sm80.cuh"
#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::attention::decoding {

using namespace tile;

// Of a stream's first slice of these keys: the nth of all slices is that of stream n % streams, so which
// stream has a key depends on no other.
template <class At>
__device__ __forceinline__ int first_key(KeyRange keys, int stream) {
  const int first = keys.from / At::keys;
  return (first + ((stream - first) & (At::streams - 1))) * At::keys;
}

// The same of an item, and from there to its next one: of a short tile a warp has all slices, which lie
// between multiples of At::step and so are in the order of their streams.
template <class At>
__device__ __forceinline__ int first_key(const Item& item, int stream) {
  return item.is_short ? item.keys.from / At::keys * At::keys : first_key<At>(item.keys, stream);
}
template <class At>
__device__ __forceinline__ int step_of(const Item& item) {
  return item.is_short ? At::keys : At::step;
}

// Where a stream is.
template <class At, class Cache>
struct Cursor {
  const Items<Cache>& items;
  const int stream;
  int item, key, step;  // of the next slice; from there to the one after it
  KeyRange keys;        // of its item

  __device__ __forceinline__ bool at_end() const { return item >= items.count; }
  // Whether some query sees row r of the slice; other rows become zeros.
  __device__ __forceinline__ bool sees(int r) const { return key + r >= keys.from && key + r < keys.to; }
  // The stream's first slice of its items from n on; begin(item) is called for its item.
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

// What the loaders have in common: lanes and where a stage's pieces go. Tiles of 16 bits are permuted as
// tensor cores read them (SharedTile); of f32, a warp reads rows from end to end.
template <class S, class At>
struct Copies {
  static constexpr int each = 16 / sizeof(S), pieces = At::D / each;  // elements of a piece; pieces of a row
  static constexpr int lanes = pieces < 32 ? pieces : 32, rows = 32 / lanes;  // of a row; at a time
  static constexpr bool permuted = sizeof(S) == 2;
  u32 to, end;  // where the lane's piece of the next slice's first rows goes; the end of the ring for it
  std::uint64_t once = ptx::evict_first();

  __device__ __forceinline__ explicit Copies(u32 ring) {
    to = permuted ? SharedTile<At::D>{ring}.address(row(), piece()) : ring + (row() * pieces + piece()) * 16;
    end = to + At::ring;
  }
  static __device__ __forceinline__ int row() { return lane_id() / lanes; }
  static __device__ __forceinline__ int piece() { return lane_id() % lanes; }  // the lane's first of a row
  // Of rows n … n + rows − 1 of a slice: keys.
  __device__ __forceinline__ void copy_keys(int n, const S* from, bool seen, int size) const {
    copy(address(n), from, seen, size);
  }
  __device__ __forceinline__ void copy_values(int n, const S* from, bool seen, int size) const {
    copy(address(n) + At::half, from, seen, size);
  }
  // Copies of this slice become a group.
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

// Where a key of a sequence is in the pool: each lane of a warp looks up one, and later gives what it found
// to those that copy the row.
struct RowAddress {
  int b, head, number, in_page;  // sequence, key head, page, row of the page

  __device__ __forceinline__ void enter(const Item& item) { b = item.tile.b, head = item.head; }
  // Of key j; what the table has for keys that no row sees is not read.
  __device__ __forceinline__ void look_up(const AttentionCall& x, int j, KeyRange keys) {
    const bool seen = j >= keys.from && j < keys.to;
    in_page = seen ? j % x.page : 0;
    number = seen ? __ldg(x.table + i64(b) * x.pages + j / x.page) : 0;
  }
  // In pieces of 16 bytes, which 32 bits can say (decoding.cpp). A page that is not there is reported
  // elsewhere.
  template <class S>
  __device__ __forceinline__ u32 begin(const AttentionCall& x, const AttentionCall::TensorView& a) const {
    constexpr int each = 16 / sizeof(S);
    const u32 page = static_cast<u32>(number) < static_cast<u32>(x.pool) ? number : 0;
    return page * static_cast<u32>(a.batch / each) + in_page * static_cast<u32>(a.row / each) +
           head * static_cast<u32>(a.head / each);
  }
};
// The same also in one piece: there each sequence is a page (in_pages()).
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

// Pages may have any number of keys. If each has all keys of the slices that it has some of, the lanes look
// up those of 32 slices at a time, and a lane's rows are as far apart as in one piece: under load an answer
// takes longer than a slice. Else a slice's rows are looked up one by one, a slice ahead. Values that are the
// first columns of keys are read with them, once.
template <class S, class At, class Cache>
struct Loader : Copies<S, At> {
  static constexpr bool in_pages = std::is_same_v<Cache, InPages>;
  using Copies<S, At>::row, Copies<S, At>::piece, Copies<S, At>::rows, Copies<S, At>::each;
  const AttentionCall& x;
  const Cache cache;
  Cursor<At, Cache> next;
  const S *k, *v;    // in one piece: the lane's piece of the next slice's first rows
  RowAddress place;  // in pages: of the lane's slice, or of its row of the next slice
  int nth;           // of the slices that have been looked up, the next one

  __device__ __forceinline__ Loader(const AttentionCall& x, Cache cache, const Items<Cache>& items,
                                    int stream, u32 ring)
      : Copies<S, At>(ring), x(x), cache(cache), next{items, stream} {
    find(items.first(stream));
  }
  // Where the values of a stage are.
  __device__ __forceinline__ u32 values(u32 stage) const {
    return cache.values_in_keys ? stage : stage + At::half;
  }
  // Copies of the next slice become a group; an empty one if there is none.
  __device__ __forceinline__ void ask() {
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
    if (has_whole_slices())  // of which some key is seen, and so a place in the table
      place.look_up(x, next.key + lane_id() * next.step, {0, next.keys.to});
    else
      place.look_up(x, next.key + lane_id() % At::keys, next.keys);
  }
  __device__ __forceinline__ bool has_whole_slices() const {
    return x.page % At::keys == 0;
  }
};

}  // namespace tg::cuda::attention::decoding
