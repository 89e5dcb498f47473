// Steps in which ranks exchange data (ops/ranks.cpp) on GPUs: NCCL carries pieces between them, and a kernel
// of ours adds what arrived in a fixed order. So the bits of a sum depend neither on NCCL's algorithms nor on
// how the GPUs are connected.
#pragma once

#include "backends/cuda/collectives/nccl.h"
#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// `group` is null for steps of one rank. Throws DeviceError for operands that are not row-major, and for more
// ranks than a sum takes (most_summed_ranks).
PlanPtr plan_ranks(const Step& step, std::shared_ptr<NcclGroup> group);

// While one exists this rank waits on its GPU, perhaps for others. `ranks` may be null.
class RankWait {
 public:
  explicit RankWait(Communicator* ranks) : ranks_(ranks) {
    if (ranks_) ranks_->note_wait(true);
  }
  ~RankWait() {
    if (ranks_) ranks_->note_wait(false);
  }
  RankWait(const RankWait&) = delete;

 private:
  Communicator* const ranks_;
};

}  // namespace tg::cuda
