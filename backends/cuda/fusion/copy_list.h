// Copies of many pieces of memory in one launch.
#pragma once

#include <vector>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// Bytes of an operand, or of the workspace, whose address is known when a launch is recorded.
struct Place {
  std::byte* at;       // null: the workspace
  std::size_t offset;  // bytes
  std::byte* in(std::byte* workspace) const { return (at ? at : workspace) + offset; }
};

struct PieceCopy {
  Place from, to;
  std::size_t bytes;
};

// Tables for a launch of all copies, of which none overlaps another.
struct CopyListPlan;
std::shared_ptr<const CopyListPlan> plan_copy_list(const std::vector<PieceCopy>& copies);
void launch_copy_list(const Stream& s, const CopyListPlan& plan);

}  // namespace tg::cuda
