// Where tiles come from: rows of two operands of a head that are needed together, keys with values or queries
// with z_O. (Pages of a cache would be another such type.)
#pragma once

#include "backends/cuda/attention/options.h"
#include "backends/cuda/tile/shared_sm80.cuh"

namespace tg::cuda::attention {

template <class S>
struct RowSource {
  const S *a, *b;
  long long a_row, b_row;  // from one row to the next, in elements
  int a_size, b_size;      // in which rows are held
  KeyRange valid;          // others read as zeros, whatever memory holds there

  // `count` rows from row0 on into both tiles, asynchronously, by the block's threads.
  template <int count, int threads, int A, int B>
  __device__ __forceinline__ void load(tile::SharedTile<A> to_a, tile::SharedTile<B> to_b, int row0) const {
    tile::load_rows<count, threads>(to_a, a, a_row, row0, valid.from, valid.to, a_size);
    tile::load_rows<count, threads>(to_b, b, b_row, row0, valid.from, valid.to, b_size);
  }
};
template <class S>
__device__ __forceinline__ RowSource<S> row_source(const AttentionCall::Operand& a,
                                                   const AttentionCall::Operand& b, int batch, int head,
                                                   KeyRange valid, int a_size, int b_size) {
  return {a.at<S>(batch, head), b.at<S>(batch, head), a.row, b.row, a_size, b_size, valid};
}

}  // namespace tg::cuda::attention
