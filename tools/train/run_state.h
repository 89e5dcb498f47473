// What a checkpoint of tools/train keeps beside parameters and optimizer: where the run stands, the command
// line it was begun with, and which data it learns. Random numbers and batches are functions of (seed, step).
#pragma once

#include <limits>

#include <tilegrad/io/files/safetensors.h>
#include "tools/args.h"

namespace tg {

struct RunState {
  std::int64_t step = 0;
  std::int64_t best_step = 0;  // 0: nothing validated yet
  double best_loss = std::numeric_limits<double>::infinity();
  std::string data_sum;  // TrainData::identity()
};

io::Metadata to_metadata(const RunState& state, const Args& args);

// Throws FormatError, beginning with `where`, when something is missing or is no number.
RunState run_state(const io::Metadata& saved, const std::string& where);

// Gives every option that is not on the command line its value in the checkpoint. Throws Error naming the
// first option on the command line that contradicts it; what leaves the run the same run may be given anew:
// where it runs, how long, how often it validates, saves and samples, and the path of the text.
void take_options(Args& args, const io::Metadata& saved, const std::string& where);

}  // namespace tg
