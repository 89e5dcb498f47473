// Trainer: the loop around a TrainingProgram, with validation, checkpoints, metrics and resuming. tools/train
// is a command line for it; examples/train_loop.cpp is a loop without it.
#pragma once

#include <functional>
#include <optional>

#include <tilegrad/io/checkpoints/checkpoint_store.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/train/batches.h>
#include <tilegrad/train/metrics.h>
#include <tilegrad/train/training.h>

namespace tg::train {

class Trainer {
 public:
  struct Options {
    std::int64_t steps = 2000;
    optim::Schedule schedule = {};
    std::uint64_t seed = 1;  // of batches and dropout
    ProgramOptions program = {};
    std::int64_t validate_every = 250, validation_batches = 20;  // the last validation: all, up to 400
    std::int64_t save_every = 250;  // also after a better validation loss, and at the end
    bool validate_first = false;  // also before the first step: a row of step 0, which is never the best one
    bool trap_nan = false;  // end with an Error that names the node of the first gradient that is not finite
  };
  struct State {
    std::int64_t step = 0;       // steps taken
    std::int64_t best_step = 0;  // 0: nothing validated yet
    double best_loss = std::numeric_limits<double>::infinity();
  };
  // Called during the run; each is optional.
  struct Hooks {
    std::function<bool()> stop = {};                        // called before every step
    std::function<void(MetricsRow&)> step = {};             // after every step; may change the row
    std::function<void(const MetricsRow&)> validated = {};  // after every validation
    std::function<std::vector<io::CheckpointFile>(const State&)> files =
        {};  // of a checkpoint; the optimizer's is added
  };

  // With program.ranks all ranks make the same steps, and agree when to stop: a rank that is to stop stops
  // all. The batches of a step and of a validation are divided among them, or with program.context_parallel
  // the tokens of each batch. One of them has a store, usually
  // rank 0, and the others none; all of them resume from the same checkpoint. It does not depend on the
  // number of ranks.
  //
  // With a store, checkpoints go there; its directory has metrics.jsonl. The arguments must outlive the
  // Trainer, except options and hooks. Plans both programs and allocates their memory, one arena for both.
  // OutOfMemory for a program.memory_budget that is too small. Error for options that no run can have:
  // negative steps, intervals below 1, program.plan_only, trap_nan with ranks, and, for batches with
  // answers, no program.predictions or program.context_parallel.
  Trainer(const nn::LanguageModel& model, const optim::Optimizer& optimizer, const Batches& batches,
          Options options, Hooks hooks, io::CheckpointStore* store = nullptr,
          const Where& where = Where::current());

  // Resumes from a checkpoint instead of starting anew: restores optimizer and files (as Hooks::files names
  // them). The state is that of its manifest and of metrics.jsonl unless given: on all ranks that of the rank
  // with the store. Throws FormatError, and no parameter has changed, for values that no run saves: not
  // finite, negative second moments, counts of steps that are not the manifest's.
  void resume(const io::Checkpoint& checkpoint, const std::optional<State>& state = {});

  // Runs the remaining steps, or until stop() returns true, and saves. Every step is started before the
  // result of the previous one is read, so that a GPU never waits.
  const State& run();

  const State& state() const { return state_; }
  const std::vector<MetricsRow>& rows() const { return rows_; }  // including those of a resumed run
  const TrainingProgram::Result& last() const { return last_; }
  std::int64_t validation_batches(bool whole) const;
  double seconds() const { return seconds_; }  // spent on steps, without validation and checkpoints
  TrainingProgram& training() { return training_; }

 private:
  struct Running {  // a step that was started
    std::int64_t step;
    double rate;
    Pending pending;
  };
  void restore(const io::Checkpoint& checkpoint);
  void finish(const Running& running);
  void validate(bool whole, MetricsRow& row);
  void validate_start();
  bool divides_tokens() const;  // among ranks
  // Without other ranks a step waits for nobody: it leads to the checkpoint in which a stop ends.
  bool is_alone() const { return !o_.program.ranks; }
  bool stops() const;  // whether any rank is to stop
  void save();
  [[noreturn]] void trap(std::int64_t step);
  std::vector<io::CheckpointFile> files() const;

  const optim::Optimizer& optimizer_;
  const Batches& batches_;
  const Options o_;
  const Hooks hooks_;
  io::CheckpointStore* store_;
  const ProgramOptions shared_;  // of both programs
  TrainingProgram training_;
  EvaluationProgram evaluation_;
  std::size_t step_tokens_;
  std::vector<std::int32_t> x_, y_;  // of a validation batch
  State state_;
  std::int64_t saved_ = 0, skipped_ = 0;
  std::vector<MetricsRow> rows_;
  std::optional<MetricsWriter> metrics_;
  TrainingProgram::Result last_{};
  double seconds_ = 0;
  std::int64_t steps_ = 0;  // finished by this object
};

}  // namespace tg::train
