// Saying that this rank waits.
#pragma once

#include <tilegrad/core/run/communicator.h>

namespace tg::cuda {

// While one exists this rank waits on its GPU, perhaps for others. `ranks` may be null.
class WaitsForRanks {
 public:
  explicit WaitsForRanks(Communicator* ranks) : ranks_(ranks) {
    if (ranks_) ranks_->note_wait(true);
  }
  ~WaitsForRanks() {
    if (ranks_) ranks_->note_wait(false);
  }
  WaitsForRanks(const WaitsForRanks&) = delete;

 private:
  Communicator* const ranks_;
};

}  // namespace tg::cuda
