// The state that a checkpoint of tools/train saves besides parameters and optimizer: the progress of the run,
// the command line that started it, and the identity of its data. Random numbers and batches are functions of
// (seed, step).
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
  std::int64_t best_step = 0;  // 0: nothing validated yet
  double best_loss = std::numeric_limits<double>::infinity();
  std::string data_sum;  // TrainData::identity()
};

io::Metadata to_metadata(const RunState& state, const Args& args);

// Which option's value cannot be saved in a checkpoint, since it is not UTF-8, and nothing if all can.
std::string not_saveable(const Args& args);

// Throws FormatError, beginning with `where`, if something is missing, is not a number, or is a state that no
// run has.
RunState run_state(const io::Metadata& saved, const std::string& where);

// Gives every option that is not on the command line its value in the checkpoint. Throws Error with the first
// option on the command line that contradicts the checkpoint. Options that do not change the run's results
// may differ: the device, the number of steps, how often it validates, saves and samples, and the path of the
// text.
void take_options(Args& args, const io::Metadata& saved, const std::string& where);

// Throws Error on all ranks if one has another option or other data than rank 0. Most options change what is
// trained, but not the program, so compile() would not find that. Paths of files and the number of threads
// may differ.
void expect_same_on_all(const Args& args, const std::string& data_sum, Communicator& ranks);
// The same of weights that each rank has read from a folder of its own.
void expect_same_on_all(const std::vector<Parameter>& weights, Communicator& ranks);
// The same of the checkpoint in `out`: ranks of several hosts may see other files by the same name.
void expect_same_on_all(const io::Checkpoint& checkpoint, const std::string& out, Communicator& ranks);

}  // namespace tg
