// What decoding's kernels share: what a launch is told in addition to the call, and where queries are.
#pragma once

#include "backends/cuda/attention/decoding/decoding_items.cuh"
#include "backends/cuda/attention/stages/score.cuh"
#include "backends/cuda/kernels/launch.cuh"

namespace tg::cuda::attention::decoding {

template <class Cache>
struct Plan {
  Cache cache;
  typename Cache::Ranges ranges;
  float factor, cap;  // as Score has them
  Tiles tiles;
};
template <class Cache>
Plan<Cache> plan_of(const AttentionCall& x, const typename Cache::Ranges& ranges) {
  return {Cache(x), ranges, static_cast<float>(factor_of(x)), static_cast<float>(cap_of(x)),
          tiles_of_launch(x, 0)};
}

// The query of row r of an item's tile; null beyond its rows.
template <class S>
__device__ __forceinline__ const S* query(const AttentionCall& x, const Item& item, int r) {
  if (r >= item.tile.rows) return nullptr;
  const QueryPlace at(x, item, r);
  return x.q.at<S>(item.tile.b, at.head) + at.i * x.q.row;
}

}  // namespace tg::cuda::attention::decoding
