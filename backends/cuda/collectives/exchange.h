// Kernels of an exchange between ranks: copies of many pieces of memory in one launch, and sums over what
// ranks sent, in a fixed order.
#pragma once

#include <vector>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// Bytes of an operand, or of the workspace, whose address is known when a launch is recorded.
struct BufferSlice {
  std::byte* at;       // null: the workspace
  std::size_t offset;  // bytes
  constexpr std::byte* in(std::byte* workspace) const { return (at ? at : workspace) + offset; }
};

struct PieceCopy {
  BufferSlice from, to;
  std::size_t bytes;
};

// Tables for a launch of all copies, of which none overlaps another.
struct CopyListPlan;
std::shared_ptr<const CopyListPlan> plan_copy_list(const std::vector<PieceCopy>& copies);
void launch_copy_list(const Stream& s, const CopyListPlan& plan);

// Σ over ranks of `count` elements of type `from`, as elements of type `to`. Those of this rank are at `own`,
// those of the first other rank in the workspace, at `received`, and those of each further one `stride`
// behind. Both are multiples of 16.
struct RankSum {
  const std::byte* own;
  std::byte* out;
  std::size_t received, stride;  // bytes
  std::int64_t count;
  DType from, to;
};

constexpr int most_summed_ranks = 8;

// Tables for a launch of all sums.
struct OrderedSumPlan;
std::shared_ptr<const OrderedSumPlan> plan_ordered_sum(const std::vector<RankSum>& sums);
// In f32, or f64 for f64, by a tree whose left half is the largest power of two below the number of ranks.
void launch_ordered_sum(const Stream& s, const OrderedSumPlan& plan, int rank, int ranks);

}  // namespace tg::cuda
