// Where tiles come from: rows of two operands of a head that are read together, keys with values or queries
// with z_O, which lie in memory `row` elements apart. (Pages of a cache would be another such type.)
#pragma once

#include "backends/cuda/attention/options.h"

namespace tg::cuda::attention {

template <class S>
struct RowSource {
  const S *a, *b;
  long long a_row, b_row;
  int a_size, b_size;
  KeyRange valid;  // others read as zeros, whatever memory holds there

  // `count` rows from row0 on into both shared tiles, or into one, of any architecture, asynchronously, by
  // the block's threads.
  template <int count, int threads, class A, class B>
  __device__ __forceinline__ void load(A to_a, B to_b, int row0) const {
    load_a<count, threads>(to_a, row0);
    load_b<count, threads>(to_b, row0);
  }
  template <int count, int threads, class A>
  __device__ __forceinline__ void load_a(A to, int row0) const {
    load_rows<count, threads>(to, a, a_row, row0, valid.from, valid.to, a_size);
  }
  template <int count, int threads, class B>
  __device__ __forceinline__ void load_b(B to, int row0) const {
    load_rows<count, threads>(to, b, b_row, row0, valid.from, valid.to, b_size);
  }
};

// Of head h, K and V (then h is a key head) or Q and z_O, of the sizes in which they are held.
template <class S>
__device__ __forceinline__ RowSource<S> rows_of_head(const AttentionCall& x, bool keys, int b, int h,
                                                     KeyRange valid, int d, int dv) {
  const AttentionCall::Operand &a = keys ? x.k : x.q, &c = keys ? x.v : x.z_o;
  return {a.at<S>(b, h), c.at<S>(b, h), a.row, c.row, d, dv, valid};
}

}  // namespace tg::cuda::attention
