// Trainer: a training loop with validation, checkpoints, metrics and resuming. tools/train is its command
// line; examples/train_loop.cpp is a loop without it.
#pragma once

#include <functional>
#include <optional>

#include <tilegrad/io/checkpoints/checkpoint_store.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/train/batches.h>
#include <tilegrad/train/metrics.h>
#include <tilegrad/train/training.h>

namespace tg::train {

// Trains a language model.
class Trainer {
 public:
  // Options of a run.
  struct Options {
    std::int64_t steps = 2000;          // total number of steps, including the steps before a resume
    optim::Schedule schedule = {};      // learning rate of each step
    std::uint64_t seed = 1;             // of batches and dropout
    ProgramOptions program = {};        // of the training step and the evaluation
    std::int64_t validate_every = 250;  // steps between validations
    // Batches in a validation. The last validation uses all batches, up to 400.
    std::int64_t validation_batches = 20;
    // Steps between saves; also saves after a better validation loss and at the end.
    std::int64_t save_every = 250;
    // Also validate before the first step. The result is a row of step 0 and never counts as the best one.
    bool validate_first = false;
    bool trap_nan = false;  // stop with an Error that names the node of the first non-finite gradient
  };
  // The position of a run.
  struct State {
    std::int64_t step = 0;       // steps done
    std::int64_t best_step = 0;  // step with the lowest validation loss; 0: not validated yet
    double best_loss = std::numeric_limits<double>::infinity();  // its validation loss in nats per token
  };
  // Callbacks of a run; each is optional.
  struct Hooks {
    std::function<bool()> stop = {};                        // called before every step; true ends the run
    std::function<void(MetricsRow&)> step = {};             // called after every step; may change the row
    std::function<void(const MetricsRow&)> validated = {};  // called after every validation
    // Called for each checkpoint; returns its files. The optimizer's file is added to them.
    std::function<std::vector<io::CheckpointFile>(const State&)> files = {};
  };

  // Plans the training step and the evaluation, and allocates one arena for both. The arguments must outlive
  // the Trainer, except options and hooks. With a store, checkpoints and metrics.jsonl are written to its
  // directory. With program.ranks, all ranks run the same steps. If `stop` returns true on one rank, the run
  // ends on all ranks. The ranks divide the batches of each step and of each validation. With
  // program.context_parallel, they divide the tokens of each batch instead. Exactly one rank has a store,
  // usually rank 0. All ranks resume from the same checkpoint, which does not depend on the number of ranks.
  // Throws OutOfMemory if program.memory_budget is too small. Throws Error for invalid options:
  // - negative steps or an interval below 1;
  // - program.plan_only;
  // - trap_nan with ranks;
  // - for batches with answers: no program.predictions, or program.context_parallel.
  Trainer(const nn::LanguageModel& model, const optim::Optimizer& optimizer, const Batches& batches,
          Options options, Hooks hooks, io::CheckpointStore* store = nullptr,
          const Where& where = Where::current());

  // Resumes from a checkpoint: restores the optimizer and the files of Hooks::files. Without `state`, the
  // state is read from the checkpoint's manifest and metrics.jsonl. All ranks then use the state that the
  // rank with the store has read. Throws FormatError for values that no run saves. Examples are values that
  // are not finite, negative second moments, and step counts that differ from the manifest. No parameter has
  // then changed.
  void resume(const io::Checkpoint& checkpoint, const std::optional<State>& state = {});

  // Runs the remaining steps, until stop() returns true, and saves. It starts each step before it reads the
  // result of the previous one, so that a GPU never waits.
  const State& run();

  // The current position of the run.
  const State& state() const { return state_; }
  // The metrics so far, including the metrics from before a resume.
  const std::vector<MetricsRow>& rows() const { return rows_; }
  // The result of the latest step.
  const TrainingProgram::Result& last() const { return last_; }
  // The number of batches in a validation or, if `whole` is set, in the last validation.
  std::int64_t validation_batches(bool whole) const;
  // Time spent in steps, without validations and checkpoints.
  double seconds() const { return seconds_; }
  // The program of a step.
  TrainingProgram& training() { return training_; }

 private:
  struct Running {  // a started step
    std::int64_t step;
    double rate;
    Pending pending;
  };
  void restore(const io::Checkpoint& checkpoint);
  void finish(const Running& running);
  void validate(bool whole, MetricsRow& row);
  void validate_start();
  bool divides_tokens() const;  // among ranks
  // Whether there are no other ranks. Steps then never wait for other ranks. If the run is stopped, its
  // running steps still lead to the last checkpoint.
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
  std::size_t step_tokens_;          // tokens per step
  std::vector<std::int32_t> x_, y_;  // tokens and targets of a validation batch
  State state_;
  std::int64_t saved_ = 0, skipped_ = 0;
  std::vector<MetricsRow> rows_;
  std::optional<MetricsWriter> metrics_;
  TrainingProgram::Result last_{};
  double seconds_ = 0;
  std::int64_t steps_ = 0;  // steps finished by this object
};

}  // namespace tg::train
