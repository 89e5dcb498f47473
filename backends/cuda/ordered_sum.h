// Sums over what ranks sent, in a fixed order.
#pragma once

#include <vector>

#include "backends/cuda/kernel.h"

namespace tg::cuda {

// Σ over ranks of `count` elements of type `from`, as elements of type `to`. Those of this rank are at `own`,
// those of the others in the workspace, from `received` on, one rank behind the other, each of count
// elements.
struct RankSum {
  const std::byte* own;
  std::byte* out;
  std::size_t received;  // bytes; a multiple of 16
  std::int64_t count;
  DType from, to;
  // Bytes of what one rank sends, rounded up so that each begins at a multiple of 16.
  std::size_t stride() const { return (static_cast<std::size_t>(count) * size_of(from) + 15) / 16 * 16; }
};

constexpr int most_summed_ranks = 8;

// Tables for a launch of all sums.
std::shared_ptr<const void> plan_ordered_sum(const std::vector<RankSum>& sums);
// In f32, or f64 for f64, by a tree whose left half is the largest power of two below the number of ranks.
void launch_ordered_sum(const Stream& s, const void* plan, int rank, int ranks);

}  // namespace tg::cuda
