// Kernels for exchanges between ranks: copies of many memory ranges in one launch, and sums over the received
// data, in a fixed order.
#pragma once

#include <vector>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// Bytes of an operand or of the workspace. The address is known when a launch is recorded.
struct BufferSlice {
  std::byte* at;       // null: the workspace
  std::size_t offset;  // in bytes
  constexpr std::byte* in(std::byte* workspace) const { return (at ? at : workspace) + offset; }
};

struct PieceCopy {
  BufferSlice from, to;
  std::size_t bytes;
};

// Tables for one launch of all copies. The copies do not overlap.
struct CopyListPlan;
std::shared_ptr<const CopyListPlan> plan_copy_list(const std::vector<PieceCopy>& copies);
void launch_copy_list(const Stream& s, const CopyListPlan& plan);

// A sum over ranks of `count` elements of type `from`, stored as type `to`. This rank's elements are at
// `own`. The elements of the other ranks are in the workspace. They start at `received`, and the distance
// from rank to rank is `stride`. `received` and `stride` are multiples of 16.
struct RankSum {
  const std::byte* own;
  std::byte* out;
  std::size_t received, stride;  // bytes
  std::int64_t count;
  DType from, to;
};

constexpr int most_summed_ranks = 8;

// Tables for one launch of all sums.
struct OrderedSumPlan;
std::shared_ptr<const OrderedSumPlan> plan_ordered_sum(const std::vector<RankSum>& sums);
// Sums in f32 (f64 for f64 elements), in the order of a binary tree. The left half of the tree has the
// largest power of two below `ranks`.
void launch_ordered_sum(const Stream& s, const OrderedSumPlan& plan, int rank, int ranks);

}  // namespace tg::cuda
