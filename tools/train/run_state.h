// State of a run that a checkpoint of tools/train saves in addition to parameters and optimizer: its
// progress, its command line, and the identity of its data. Random numbers and batches need no state, because
// they are functions of (seed, step).
#pragma once

#include <limits>
#include <vector>

#include <tilegrad/core/graph/parameter.h>
#include <tilegrad/core/run/communicator.h>
#include <tilegrad/io/checkpoints/checkpoint.h>
#include <tilegrad/io/files/safetensors.h>
#include "tools/args.h"

namespace tg {

struct RunState {
  std::int64_t step = 0;
  std::int64_t best_step = 0;  // 0: no validation yet
  double best_loss = std::numeric_limits<double>::infinity();
  std::string data_sum;  // TrainData::identity()
};

io::Metadata to_metadata(const RunState& state, const Args& args);

// Returns a message about the first option that cannot be saved in a checkpoint because its value is not
// valid UTF-8. Otherwise returns "".
std::string not_saveable(const Args& args);

// Throws FormatError if a value is missing, is not a number, or is impossible. The message begins with
// `where`.
RunState run_state(const io::Metadata& saved, const std::string& where);

// Sets every option that is not on the command line to its value in the checkpoint. Throws Error for the
// first option on the command line that contradicts the checkpoint. Options that do not change the results
// may differ: --backend, --steps, --eval-every, --eval-batches, --save-every, --sample, and paths of data
// files.
void take_options(Args& args, const io::Metadata& saved, const std::string& where);

// Throws Error on all ranks if an option or the data of one rank differs from rank 0. Most options change the
// training but not the program, so compile() does not detect such differences. File paths and thread counts
// may differ.
void expect_same_on_all(const Args& args, const std::string& data_sum, Communicator& ranks);
// Throws Error on all ranks if the weights that a rank has read differ from the weights of rank 0.
void expect_same_on_all(const std::vector<Parameter>& weights, Communicator& ranks);
// Throws Error on all ranks if they find different checkpoints in `out`. This can happen on several hosts
// that do not share the directory.
void expect_same_on_all(const io::Checkpoint& checkpoint, const std::string& out, Communicator& ranks);

}  // namespace tg
