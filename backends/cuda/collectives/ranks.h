// Collectives (ops/ranks.cpp) on GPUs. NCCL transfers the data between ranks, and our kernel adds the
// received data in a fixed order. A sum is therefore bitwise independent of NCCL's algorithms and of the
// interconnect.
#pragma once

#include "backends/cuda/collectives/nccl.h"
#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// Returns the plan of a collective. `group` is null for steps of one rank. Throws DeviceError for operands
// that are not row-major, and for sums over more than most_summed_ranks ranks.
PlanPtr plan_ranks(const Step& step, std::shared_ptr<NcclGroup> group);

// While an instance exists, this rank counts as waiting for its GPU. The GPU may be waiting for other ranks.
// `ranks` may be null.
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
