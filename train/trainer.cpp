#include <tilegrad/train/trainer.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <tilegrad/core/base/error.h>
#include "core/run/ranks.h"
#include "core/run/saving.h"
#include "train/optimizer_state.h"
#include "train/prefetch.h"

namespace tg::train {

namespace {

constexpr const char *optimizer_file = "optimizer.safetensors", *metrics_file = "metrics.jsonl";
constexpr std::int64_t most_validation_batches = 400;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void refuse(const std::string& what, const Where& where) {
  throw Error(in_context("[trainer] " + what, where));
}

Trainer::Options checked(Trainer::Options o, const Where& where) {
  const std::string mistake =
      range_mistake({{"steps", o.steps, Range::whole_from(0)},
                     {"validate_every", o.validate_every, Range::whole_from(1)},
                     {"validation_batches", o.validation_batches, Range::whole_from(1)},
                     {"save_every", o.save_every, Range::whole_from(1)}});
  if (!mistake.empty()) refuse(mistake, where);
  o.schedule.check();
  if (o.trap_nan && o.program.ranks)
    refuse("trap_nan is for one rank, not " + std::to_string(o.program.ranks->size()), where);
  if (o.program.plan_only)
    refuse("a program with plan_only cannot run; plan_memory() gives its memory", where);
  return o;
}

}  // namespace

Trainer::Trainer(const nn::LanguageModel& model, const optim::Optimizer& optimizer, const Batches& batches,
                 Options options, Hooks hooks, io::CheckpointStore* store, const Where& where)
    : optimizer_(optimizer),
      batches_(batches),
      o_(checked(std::move(options), where)),
      hooks_(std::move(hooks)),
      store_(store),
      shared_(sharing_memory(model, o_.program, where)),
      training_(model, optimizer, shared_, o_.seed, where),
      evaluation_(model, shared_, where),
      x_(static_cast<std::size_t>(o_.program.batch * model.context)),
      y_(x_.size()) {
  if (store_) store_->require_own(metrics_file);
  TrainingMemory{training_.memory(), evaluation_.program().memory()}.require(o_.program.memory_budget);
  if (batches.answers() > 0 && !o_.program.predictions)
    refuse("the batches count right answers, which needs program.predictions", where);
  if (batches.answers() > 0 && divides_tokens())
    refuse("the batches count right answers, which no rank has as a whole", where);
  step_tokens_ = x_.size() * static_cast<std::size_t>(o_.program.accumulate);
}

std::vector<io::CheckpointFile> Trainer::files() const {
  std::vector<io::CheckpointFile> all;
  if (hooks_.files) all = hooks_.files(state_);
  all.insert(all.begin() + (all.empty() ? 0 : 1), {optimizer_file, optimizer_.whole_state(), {}});
  return all;
}

void Trainer::resume(const io::Checkpoint& checkpoint, const std::optional<State>& state) {
  state_ = state.value_or(State{.step = checkpoint.step(), .best_step = checkpoint.best_step()});
  if (state_.step != checkpoint.step() || state_.best_step != checkpoint.best_step())
    throw FormatError(
        "[resume] " + checkpoint.directory() + ": the run is at step " + std::to_string(state_.step) +
        " and its best one is " + std::to_string(state_.best_step) + ", but the checkpoint is of step " +
        std::to_string(checkpoint.step()) + " and names " + std::to_string(checkpoint.best_step()));
  if (store_) store_->require_free_steps(state_.step + 1, o_.steps);
  restore(checkpoint);
  training_.set_step(state_.step);
  if (store_) rows_ = cut_metrics(store_->directory() + "/" + metrics_file, state_.step);
  if (state || state_.best_step == 0) return;
  for (const MetricsRow& row : rows_)
    if (row.step == state_.best_step) state_.best_loss = row.val_loss;
  if (!o_.program.ranks) return;
  // Only one rank has metrics rows, but all ranks must save at the same steps.
  for (const double best : gather_one(*o_.program.ranks, state_.best_loss))
    state_.best_loss = std::min(state_.best_loss, best);
}

// Checks everything before it changes any parameter.
void Trainer::restore(const io::Checkpoint& checkpoint) {
  const std::vector<io::CheckpointFile> all = files();
  const std::vector<std::vector<Array>> values = checkpoint.values(all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string where = "[resume] " + checkpoint.directory() + "/" + all[i].name;
    if (all[i].name == optimizer_file)
      check_optimizer_state(all[i].parameters, values[i], state_.step, where);
    else
      io::check_finite(all[i].parameters, values[i], where);
  }
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].name == optimizer_file) optimizer_.set_state(values[i]);  // may throw
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].name != optimizer_file)
      for (std::size_t k = 0; k < values[i].size(); ++k) Parameter(all[i].parameters[k]).write(values[i][k]);
}

const Trainer::State& Trainer::run() {
  const bool begins = state_.step == 0;
  if (store_) {
    store_->require_free_steps(state_.step + 1, o_.steps);
    if (begins) store_->clear();
    store_->claim(metrics_file);
    metrics_.emplace(store_->directory() + "/" + metrics_file,
                     begins ? io::OutputFile::Start::empty : io::OutputFile::Start::append);
  }
  for (const Parameter& p : optimizer_.state())
    if (p.name() == "optimizer.skipped") skipped_ = static_cast<std::int64_t>(p.read().item<float>());
  if (begins && o_.validate_first) validate_start();
  const std::int64_t first = state_.step;
  saved_ = first;
  Prefetch prepared(
      first, o_.steps - 1, step_tokens_,
      [&](std::int64_t n, Batches::Tokens x, Batches::Tokens y) { batches_.training(o_.seed, n, x, y); });
  std::optional<Running> running;
  const auto finish_one = [&] { finish(*std::exchange(running, std::nullopt)); };
  for (std::int64_t step = first + 1; step <= o_.steps && !stops(); ++step) {
    const double begin = seconds_now();
    const double rate = o_.schedule(step - 1);
    Pending started;
    {
      const SaveScope computes(SaveScope::Stage::computing, is_alone());
      const TokenBatch& batch = prepared.next();
      started = training_.start(batch.x, batch.y, rate);
    }
    seconds_ += seconds_now() - begin;
    if (running) finish_one();
    running = {step, rate, started};
    // Waits if the parameters are read after this step, or if the result of the step is ready.
    if (step == o_.steps || step % o_.validate_every == 0 || step % o_.save_every == 0 || o_.trap_nan ||
        started.ready())
      finish_one();
  }
  if (running) finish_one();
  if (state_.step > saved_) save();  // the run was stopped
  training_.gather_weights();
  if (metrics_) metrics_->close();
  metrics_.reset();
  return state_;
}

// Processes the result of a finished step.
void Trainer::finish(const Running& running) {
  const double begin = seconds_now();
  {
    const SaveScope computes(SaveScope::Stage::computing, is_alone());
    last_ = training_.result(running.pending);
  }
  seconds_ += seconds_now() - begin;
  if (o_.trap_nan && last_.skipped > skipped_) trap(running.step);
  MetricsRow row{.step = running.step,
                 .train_loss = last_.loss,
                 .lr = static_cast<float>(running.rate),
                 .grad_norm = last_.grad_norm};
  ++steps_;
  row.tokens_per_s =
      static_cast<float>(static_cast<double>(steps_) * static_cast<double>(step_tokens_) / seconds_);
  if (hooks_.step) hooks_.step(row);
  const bool last = running.step == o_.steps, validates = last || running.step % o_.validate_every == 0;
  if (validates) {
    validate(last, row);
    if (hooks_.validated) hooks_.validated(row);
  }
  rows_.push_back(row);
  if (metrics_) metrics_->write(row);
  state_.step = running.step;
  const bool better = validates && row.val_loss < state_.best_loss;
  if (better) state_.best_step = state_.step, state_.best_loss = row.val_loss;
  if (better || last || state_.step % o_.save_every == 0) save();
}

void Trainer::validate_start() {
  MetricsRow row{.step = 0};
  validate(false, row);
  if (hooks_.validated) hooks_.validated(row);
  rows_.push_back(row);
  if (metrics_) metrics_->write(row);
}

bool Trainer::stops() const {
  std::uint64_t stop = hooks_.stop && hooks_.stop();
  if (o_.program.ranks)
    for (std::uint64_t other : gather_one(*o_.program.ranks, stop)) stop |= other;
  return stop != 0;
}

bool Trainer::divides_tokens() const {
  return o_.program.context_parallel && o_.program.ranks && o_.program.ranks->size() > 1;
}

// Computes the mean loss over the targets of fixed batches, evenly spread over the held-out part. With N
// ranks, each rank evaluates every Nth batch, or its own tokens of every batch. All ranks then add up all
// results in the order of the batches.
void Trainer::validate(bool whole, MetricsRow& row) {
  const SaveScope computes(SaveScope::Stage::computing, is_alone());
  training_.gather_weights();
  const std::int64_t count = validation_batches(whole), answers = batches_.answers();
  if (count < 1)
    throw Error("[trainer] the batches have a validation_count of " + std::to_string(count) +
                ", expected at least 1");
  const Communicator* ranks = o_.program.ranks.get();
  const bool whole_batches = ranks && !divides_tokens();
  const std::int64_t size = whole_batches ? ranks->size() : 1, first = whole_batches ? ranks->rank() : 0;
  struct Evaluated {
    double mean;
    std::int64_t targets, right;
  };
  // Each rank has the same number of entries. Entries after the last batch have no targets.
  std::vector<Evaluated> own(static_cast<std::size_t>((count - 1) / size + 1), Evaluated{});
  Pending before;  // runs while the next batch is prepared
  std::vector<std::int32_t> y_before;
  const auto finish_batch = [&](Evaluated& to) {
    to = {evaluation_.result(before), evaluation_.own_targets(y_before),  // the mean over them
          answers > 0 ? batches_.right_answers(y_before, evaluation_.predictions(before)) : 0};
  };
  std::size_t started = 0;
  for (std::int64_t k = first; k < count; k += size) {
    batches_.validation(k, count, x_, y_);
    const Pending next = evaluation_.start(x_, y_);
    if (started > 0) finish_batch(own[started - 1]);
    before = next, y_before = y_, ++started;
  }
  if (started > 0) finish_batch(own[started - 1]);
  const std::vector<Evaluated> all = ranks ? gather(*o_.program.ranks, std::span<const Evaluated>(own)) : own;
  double total = 0;
  std::int64_t right = 0, targets = 0;
  for (std::int64_t k = 0; k < count; ++k)
    for (std::int64_t part = 0; part < (divides_tokens() ? ranks->size() : 1); ++part) {
      const std::int64_t rank = k % size + part;
      const Evaluated& e =
          all[static_cast<std::size_t>(rank) * own.size() + static_cast<std::size_t>(k / size)];
      total += e.mean * static_cast<double>(e.targets);
      targets += e.targets, right += e.right;
    }
  row.val_loss = static_cast<float>(total / static_cast<double>(std::max<std::int64_t>(1, targets)));
  if (answers > 0)
    row.val_accuracy = static_cast<float>(static_cast<double>(right) /
                                          (static_cast<double>(count) * static_cast<double>(answers)));
}

std::int64_t Trainer::validation_batches(bool whole) const {
  const std::int64_t all = std::min(batches_.validation_count(), most_validation_batches);
  return whole ? all : std::min(all, o_.validation_batches);
}

void Trainer::save() {
  saved_ = state_.step;
  // A rank whose step failed does not reach this call. The other ranks then do not save their step.
  if (o_.program.ranks) gather_one(*o_.program.ranks, state_.step);
  const SaveScope gathers(
      SaveScope::Stage::computing);  // all ranks are here and have their parts of the checkpoint
  training_.gather_weights();
  if (!store_) return optimizer_.gather_state({});
  const std::vector<io::CheckpointFile> all = files();
  for (const io::CheckpointFile& f : all)
    if (f.name == optimizer_file) optimizer_.gather_state(f.parameters);
  try {
    metrics_->sync();  // every step of a checkpoint has its row on disk
  } catch (const Error&) {
    store_->save(state_.step, state_.best_step, all);  // saved even if the rows could not be written
    throw;
  }
  store_->save(state_.step, state_.best_step, all);
}

// The step was skipped, so parameters and state are unchanged.
void Trainer::trap(std::int64_t step) {
  std::vector<std::int32_t> x(step_tokens_), y(step_tokens_);
  batches_.training(o_.seed, step - 1, x, y);
  const std::string bad = training_.first_bad_node(x, y, step - 1);
  throw Error("[trap-nan] step " + std::to_string(step) + ": " +
              (bad.empty() ? "every element is finite, but the sum of their squares is not" : bad));
}

}  // namespace tg::train
