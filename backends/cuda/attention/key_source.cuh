// Where tiles come from: rows of two operands of a head that are wanted together, keys with values or queries
// with z_O, which lie in memory `row` elements apart. (Pages of a cache would be another such type.)
#pragma once

#include "backends/cuda/attention/options.h"
#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::attention {

template <class S>
struct RowSource {
  const S *a, *b;
  long long a_row, b_row;
  int a_size, b_size;
  KeyRange valid;  // others read as zeros, whatever memory holds there

  // `count` rows from row0 on into both tiles, asynchronously, by the block's threads.
  template <int count, int threads, int A, int B>
  __device__ __forceinline__ void load(tile::SharedTile<A> to_a, tile::SharedTile<B> to_b, int row0) const {
    tile::load_rows<count, threads>(to_a, a, a_row, row0, valid.from, valid.to, a_size);
    tile::load_rows<count, threads>(to_b, b, b_row, row0, valid.from, valid.to, b_size);
  }
};

// K and V of a key head, of the sizes in which they are held; and Q and z_O of a head.
template <class S>
__device__ __forceinline__ RowSource<S> keys_of_head(const AttentionCall& x, int b, int key_head,
                                                     KeyRange valid, int d, int dv) {
  return {x.k.at<S>(b, key_head), x.v.at<S>(b, key_head), x.k.row, x.v.row, d, dv, valid};
}
template <class S>
__device__ __forceinline__ RowSource<S> queries_of_head(const AttentionCall& x, int b, int h, KeyRange valid,
                                                        int d, int dv) {
  return {x.q.at<S>(b, h), x.z_o.at<S>(b, h), x.q.row, x.z_o.row, d, dv, valid};
}

}  // namespace tg::cuda::attention
