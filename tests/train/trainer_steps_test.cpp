// Compares a Trainer's actions at each step with a list that plain code makes. The actions are requests for
// batches, reports, validations and saves.
#include <tilegrad/train/trainer.h>

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <mutex>
#include <set>

#include <tilegrad/nn/models/model.h>
#include "tests/support/files.h"
#include "train/optimizer_state.h"

namespace {
std::string close_fails_for;  // name of the file
}

// Replaces the function of the C library. The library under test also calls the new function.
extern "C" int close(int fd) {
  std::error_code error;
  const bool fails = !close_fails_for.empty() &&
                     std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error).filename() ==
                         close_fails_for;
  const auto result = static_cast<int>(::syscall(SYS_close, fd));
  if (!fails) return result;
  errno = EIO;
  return -1;
}

namespace {

using namespace tg;
using tg::testing::error_of;
using tg::testing::TemporaryDirectory;
namespace fs = std::filesystem;

constexpr std::int64_t context = 4, batch = 2, vocabulary = 7;

// In validation batch k, all targets have class k % 7, and k % 5 of 8 answers are correct.
struct CountedBatches : train::Batches {
  std::int64_t count = 3, answers_each = 0;
  mutable std::mutex mutex;
  mutable std::set<std::pair<std::uint64_t, std::int64_t>> trained;  // seeds and steps
  mutable std::vector<std::string> events;

  void training(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const override {
    const std::scoped_lock lock(mutex);
    trained.emplace(seed, step);
    fill(step % 2, x, y);
    if (x.size() > 1) y[1] = -100;
  }
  std::int64_t validation_count() const override { return count; }
  void validation(std::int64_t k, std::int64_t n, Tokens x, Tokens y) const override {
    events.push_back("batch " + std::to_string(k) + " of " + std::to_string(n));
    fill(k % vocabulary, x, y);
  }
  std::int64_t answers() const override { return answers_each; }
  std::int64_t right_answers(std::span<const std::int32_t> y, const Array& predicted) const override {
    EXPECT_EQ(predicted.numel(), batch * context);
    return y[0] % 5;
  }
  static void fill(std::int64_t target, Tokens x, Tokens y) {
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<std::int32_t>(i % vocabulary), y[i] = static_cast<std::int32_t>(target);
  }
};

struct CountedRun {
  nn::Params params{1};
  nn::Model model{params,
                  {.vocabulary = vocabulary,
                   .context = context,
                   .layers = 1,
                   .heads = 2,
                   .width = 8,
                   .dropout = 0.2,
                   .std = 0.3}};
  optim::AdamW optimizer{params.all()};
  CountedBatches batches;
  std::vector<std::string>& events = batches.events;
  std::int64_t stops_after = 1000, asked = 0;

  train::Trainer::Hooks hooks() {
    return {.stop = [this] { return ++asked > stops_after; },
            .step =
                [this](train::MetricsRow& row) {
                  events.push_back("step " + std::to_string(row.step));
                  row.tokens_per_s = static_cast<float>(7 * row.step);
                },
            .validated =
                [this](const train::MetricsRow& row) {
                  events.push_back("validated " + std::to_string(row.step));
                },
            .files =
                [this](const train::Trainer::State& s) {
                  events.push_back("files of " + std::to_string(s.step) + ", best " +
                                   std::to_string(s.best_step));
                  return std::vector<io::CheckpointFile>{{"model.safetensors", params.all(), {}}};
                }};
  }
};

void expect_same(const train::MetricsRow& a, const train::MetricsRow& b) {
  EXPECT_EQ(train::to_json(a), train::to_json(b));
}

// Returns the events of a run with known rows, for steps first + 1 to last.
std::vector<std::string> expected_events(const train::Trainer::Options& o,
                                         const std::vector<train::MetricsRow>& rows, std::int64_t count,
                                         std::int64_t first, std::int64_t last, double best,
                                         std::int64_t best_step) {
  std::vector<std::string> events;
  const auto validate = [&](std::int64_t step, bool whole) {
    const std::int64_t n = std::min<std::int64_t>(count, whole ? 400 : o.validation_batches);
    for (std::int64_t k = 0; k < n; ++k)
      events.push_back("batch " + std::to_string(k) + " of " + std::to_string(n));
    events.push_back("validated " + std::to_string(step));
  };
  if (o.validate_first && first == 0) validate(0, false);
  std::int64_t saved = first;
  const auto save = [&](std::int64_t step) {
    events.push_back("files of " + std::to_string(step) + ", best " + std::to_string(best_step));
    saved = step;
  };
  for (std::int64_t step = first + 1; step <= last; ++step) {
    const auto row = std::ranges::find(rows, step, &train::MetricsRow::step);
    events.push_back("step " + std::to_string(step));
    const bool validates = step == o.steps || step % o.validate_every == 0;
    EXPECT_EQ(std::isnan(row->val_loss), !validates) << step;
    if (validates) validate(step, step == o.steps);
    const bool is_better = validates && row->val_loss < best;
    if (is_better) best = row->val_loss, best_step = step;
    if (is_better || step == o.steps || step % o.save_every == 0) save(step);
  }
  if (last > saved) save(last);  // the run was stopped
  return events;
}

struct Case {
  std::int64_t steps, validate_every, validation_batches, save_every;
  bool validate_first;
  std::int64_t stops_after, count, answers;
};

TEST(TrainerSteps, EventsMatchASimpleList) {
  const Case cases[] = {{1, 1, 1, 1, false, 99, 1, 0}, {6, 2, 2, 3, true, 99, 3, 8},
                        {7, 3, 5, 2, false, 99, 3, 0}, {9, 4, 1, 9, true, 5, 9, 3},
                        {5, 9, 1, 9, false, 0, 2, 0},  {5, 9, 2, 9, true, 3, 2, 4},
                        {4, 5, 2, 5, false, 99, 4, 6}};
  for (const Case& c : cases) {
    SCOPED_TRACE("case " + std::to_string(&c - cases));
    const TemporaryDirectory dir;
    io::CheckpointStore store(dir / "run");
    train::Trainer::Options o{.steps = c.steps,
                              .schedule = {.peak = 0.05, .floor = 0.01, .warmup = 2, .steps = 9},
                              .seed = 77,
                              .program = {.batch = batch, .predictions = c.answers > 0},
                              .validate_every = c.validate_every,
                              .validation_batches = c.validation_batches,
                              .save_every = c.save_every,
                              .validate_first = c.validate_first};
    CountedRun run;
    run.stops_after = c.stops_after, run.batches.count = c.count, run.batches.answers_each = c.answers;
    const std::int64_t last = std::min(c.steps, c.stops_after);
    train::Trainer trainer(run.model, run.optimizer, run.batches, o, run.hooks(), &store);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(trainer.run().step, last);
    EXPECT_EQ(run.asked, std::min(c.steps, c.stops_after + 1));
    EXPECT_EQ(run.events, expected_events(o, trainer.rows(), c.count, 0, last, HUGE_VAL, 0));
    EXPECT_EQ(trainer.seconds() > 0, last > 0);
    EXPECT_LE(trainer.seconds(),
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());

    // There must be one row for each step, also in the file.
    std::size_t i = c.validate_first ? 1 : 0;
    ASSERT_EQ(trainer.rows().size(), i + static_cast<std::size_t>(last));
    double best = HUGE_VAL;
    for (std::int64_t step = 1; step <= last; ++step, ++i) {
      const train::MetricsRow& row = trainer.rows()[i];
      EXPECT_EQ(row.step, step);
      EXPECT_EQ(row.lr, static_cast<float>(o.schedule(step - 1)));
      EXPECT_EQ(row.tokens_per_s, static_cast<float>(7 * step));
      EXPECT_TRUE(row.train_loss > 0 && row.grad_norm > 0);
      if (!std::isnan(row.val_loss)) best = std::min<double>(best, row.val_loss);
    }
    EXPECT_EQ(trainer.state().best_loss, best);
    for (const train::MetricsRow& row : trainer.rows()) {
      const std::int64_t n = row.step == c.steps ? c.count : std::min(c.count, c.validation_batches);
      std::int64_t right = 0;
      for (std::int64_t k = 0; k < n; ++k) right += k % vocabulary % 5;
      if (std::isnan(row.val_loss) || c.answers == 0)
        EXPECT_TRUE(std::isnan(row.val_accuracy)) << row.step;
      else
        EXPECT_EQ(row.val_accuracy,
                  static_cast<float>(static_cast<double>(right) / static_cast<double>(n * c.answers)));
    }
    const auto in_file = train::read_metrics((dir / "run") + "/metrics.jsonl");
    ASSERT_EQ(in_file.size(), trainer.rows().size());
    for (std::size_t r = 0; r < in_file.size(); ++r) expect_same(in_file[r], trainer.rows()[r]);
    for (const auto& [seed, step] : run.batches.trained) {
      EXPECT_EQ(seed, 77u);
      EXPECT_TRUE(step >= 0 && step < c.steps) << step;
    }
    EXPECT_GE(std::ssize(run.batches.trained), last);
    if (last == 0) continue;
    EXPECT_EQ(io::Checkpoint(dir / "run").step(), last);
    EXPECT_EQ(io::Checkpoint(dir / "run").best_step(), trainer.state().best_step);

    // A resumed run must have the same numbers as an uninterrupted run.
    const double best_loss = trainer.state().best_loss;
    const std::int64_t best_step = trainer.state().best_step;
    o.steps = last + 3;
    CountedRun rest;
    rest.batches.count = c.count, rest.batches.answers_each = c.answers;
    train::Trainer next(rest.model, rest.optimizer, rest.batches, o, rest.hooks(), &store);
    next.resume(io::Checkpoint(dir / "run"));
    EXPECT_EQ(next.state().step, last);
    EXPECT_EQ(next.state().best_step, best_step);
    EXPECT_EQ(next.state().best_loss,
              best_step > 0 ? static_cast<double>(static_cast<float>(best_loss)) : HUGE_VAL);
    ASSERT_EQ(next.rows().size(), trainer.rows().size());
    rest.events.clear();  // requested the files, to restore the state from them
    EXPECT_EQ(next.run().step, last + 3);
    EXPECT_EQ(rest.events, expected_events(o, next.rows(), c.count, last, last + 3, best_loss, best_step));
    EXPECT_EQ(rest.batches.trained.begin()->second, last);
    EXPECT_EQ(next.last().loss, next.rows().back().train_loss);
    // A run that is stopped immediately does not save again.
    CountedRun stopped;
    stopped.stops_after = 0, stopped.batches.count = c.count, stopped.batches.answers_each = c.answers;
    o.steps += 5;
    train::Trainer none(stopped.model, stopped.optimizer, stopped.batches, o, stopped.hooks(), &store);
    none.resume(io::Checkpoint(dir / "run"));
    stopped.events.clear();
    EXPECT_EQ(none.run().step, last + 3);
    EXPECT_TRUE(stopped.events.empty());
    o.steps -= 5;
    CountedRun whole;
    whole.batches.count = c.count, whole.batches.answers_each = c.answers;
    train::Trainer at_once(whole.model, whole.optimizer, whole.batches, o, whole.hooks());
    at_once.run();
    EXPECT_EQ(at_once.rows().back().train_loss, next.rows().back().train_loss);
    EXPECT_EQ(at_once.rows().back().val_loss, next.rows().back().val_loss);
  }
}

TEST(TrainerSteps, NewRunReplacesAnEarlierRun) {
  const TemporaryDirectory dir;
  io::CheckpointStore store(dir / "run");
  for (const std::int64_t steps : {4, 2}) {
    CountedRun run;
    train::Trainer(run.model, run.optimizer, run.batches, {.steps = steps, .program = {.batch = batch}},
                   run.hooks(), &store)
        .run();
    EXPECT_EQ(std::ssize(train::read_metrics((dir / "run") + "/metrics.jsonl")), steps);
    EXPECT_EQ(io::Checkpoint(dir / "run").step(), steps);
  }
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir / "run")) names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"best", "last", "metrics.jsonl", "run.json", "step-00000002"}));
  CountedRun run;  // without this hook, a checkpoint has only the file of the optimizer
  train::Trainer(run.model, run.optimizer, run.batches, {.steps = 1, .program = {.batch = batch}}, {}, &store)
      .run();
  names.clear();
  for (const auto& entry : fs::directory_iterator((dir / "run") + "/step-00000001/"))
    names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"manifest.json", "optimizer.safetensors"}));
  CountedRun other;
  train::Trainer again(other.model, other.optimizer, other.batches, {.steps = 9, .program = {.batch = batch}},
                       {}, &store);
  again.resume(io::Checkpoint(dir / "run"));
  const auto state = run.optimizer.state(), restored = other.optimizer.state();
  for (std::size_t i = 0; i < state.size(); ++i)
    EXPECT_TRUE(restored[i].read().same_bits(state[i].read())) << i;
}

// If a foreign folder has the name of one of the run's steps, the run is refused. All other folders are
// ignored.
TEST(TrainerSteps, ForeignFoldersOfOtherStepsAreKept) {
  for (const std::int64_t step : {0, 1, 3, 4}) {
    const TemporaryDirectory dir;
    CountedRun run;
    io::CheckpointStore store(dir / "run");
    const std::string name = "run/step-0000000" + std::to_string(step);
    fs::create_directory(dir / name), dir.file(name + "/theirs", "x");
    const std::string error = error_of([&] {
      train::Trainer(run.model, run.optimizer, run.batches, {.steps = 3, .program = {.batch = batch}}, {},
                     &store)
          .run();
    });
    EXPECT_EQ(error == "no error", step == 0 || step == 4) << error;
    EXPECT_EQ(run.batches.trained.empty(), error != "no error");
    EXPECT_TRUE(fs::exists(dir / (name + "/theirs")));
  }
}

TEST(TrainerSteps, LastValidationHasUpTo400Batches) {
  CountedRun run;
  train::Trainer trainer(run.model, run.optimizer, run.batches,
                         {.program = {.batch = batch}, .validation_batches = 20}, {});
  for (const std::int64_t count : {1, 19, 20, 21, 399, 400, 401, 5000}) {
    run.batches.count = count;
    EXPECT_EQ(trainer.validation_batches(true), std::min<std::int64_t>(count, 400));
    EXPECT_EQ(trainer.validation_batches(false), std::min<std::int64_t>(count, 20));
  }
  run.batches.count = 0;
  EXPECT_EQ(error_of([&] { trainer.run(); }),
            "[trainer] the batches have a validation_count of 0, expected at least 1");
}

// If the rows can no longer be written, the steps are still saved.
TEST(TrainerSteps, StepsAreNotLostWithTheirRows) {
  const TemporaryDirectory dir;
  CountedRun run;
  io::CheckpointStore store(dir / "run");
  train::Trainer::Hooks hooks = run.hooks();
  hooks.step = [&](train::MetricsRow& row) {
    if (row.step == 3) fs::remove((dir / "run") + "/metrics.jsonl");
  };
  train::Trainer trainer(run.model, run.optimizer, run.batches,
                         {.steps = 5, .program = {.batch = batch}, .save_every = 3}, hooks, &store);
  EXPECT_NE(error_of([&] { trainer.run(); }).find("metrics.jsonl was removed while it was being written"),
            std::string::npos);
  EXPECT_EQ(io::Checkpoint(dir / "run").step(), 3);
}

TEST(TrainerSteps, RowsThatDidNotReachTheFileAreAnError) {
  const TemporaryDirectory dir;
  CountedRun run;
  io::CheckpointStore store(dir / "run");
  train::Trainer trainer(run.model, run.optimizer, run.batches, {.steps = 1, .program = {.batch = batch}}, {},
                         &store);
  close_fails_for = "metrics.jsonl";
  const std::string error = error_of([&] { trainer.run(); });
  close_fails_for.clear();
  EXPECT_EQ(error, "[metrics] cannot write " + (dir / "run/metrics.jsonl") + ": Input/output error");
}

TEST(TrainerSteps, TrapNamesTheStepAndTheNode) {
  for (const bool traps : {true, false}) {
    CountedRun run;
    train::Trainer::Hooks hooks;
    hooks.step = [&](const train::MetricsRow& row) {
      if (row.step != 2) return;
      Parameter weight = run.params.all()[0];
      Array values = weight.read();
      for (std::int64_t i = 0; i < values.numel(); ++i) values.set(i, 3e38);
      weight.write(values);
    };
    train::Trainer trainer(run.model, run.optimizer, run.batches,
                           {.steps = 4, .program = {.batch = batch}, .trap_nan = traps}, hooks);
    const std::string error = error_of([&] { trainer.run(); });
    if (traps)
      EXPECT_EQ(error.find("[trap-nan] step 3: "), 0u) << error;
    else
      EXPECT_EQ(error, "no error");
    EXPECT_EQ(error.find("every element"), std::string::npos) << error;
    EXPECT_EQ(trainer.state().step, traps ? 2 : 4);
    EXPECT_EQ(trainer.last().skipped, traps ? 1 : 2);
  }
}

TEST(TrainerSteps, TrapIgnoresStepsThatAnEarlierRunSkipped) {
  CountedRun run;
  std::vector<Array> state;
  for (const Parameter& p : run.optimizer.whole_state()) {
    state.push_back(p.read());
    if (p.name() == "optimizer.skipped") state.back().set(0, 3);
  }
  run.optimizer.set_state(state);
  train::Trainer trainer(run.model, run.optimizer, run.batches,
                         {.steps = 2, .program = {.batch = batch}, .trap_nan = true}, {});
  EXPECT_EQ(error_of([&] { trainer.run(); }), "no error");
  EXPECT_EQ(trainer.last().skipped, 3);
}

// ---- The optimizer's state in a checkpoint

std::string state_error(const std::string& name, const std::vector<double>& numbers, std::int64_t steps) {
  const auto n = std::ssize(numbers);
  Array values({n}, f64);
  for (std::int64_t i = 0; i < n; ++i) values.set(i, numbers[static_cast<std::size_t>(i)]);
  const std::vector<Parameter> state = {Parameter("optimizer.step", Array::of<float>({1}, {5})),
                                        Parameter(name, values)};
  const std::vector<Array> all = {state[0].read(), values};
  return error_of([&] { train::check_optimizer_state(state, all, steps, "here"); });
}

TEST(OptimizerState, CountsAndSquaresAreNotNegative) {
  for (const std::string name : {"optimizer.skipped", "optimizer.overflowed", "optimizer.good_steps",
                                 "optimizer.loss_scale", "optimizer.v.w", "optimizer.v.h.0"}) {
    const bool is_counted = name == "optimizer.skipped" || name == "optimizer.overflowed";
    EXPECT_EQ(state_error(name, {0}, 5), "no error") << name;
    EXPECT_EQ(state_error(name, {2, 0}, is_counted ? 7 : 5), "no error") << name;
    EXPECT_EQ(state_error(name, {2, 1}, is_counted ? 5 : 7),
              "here: its performed and skipped steps are " + std::to_string(is_counted ? 7 : 5) +
                  ", but the run is at step " + std::to_string(is_counted ? 5 : 7));
    EXPECT_EQ(state_error(name, {0, 1, -0.5}, 5),
              "here: " + name + " has -0.500000 at element 2, which is never negative");
    EXPECT_EQ(state_error(name, {0, NAN}, 5).find("here: " + name + " has "), 0u);
  }
  for (const std::string name : {"optimizer.m.w", "optimizer.v", "optimizer.vw", "w"})
    EXPECT_EQ(state_error(name, {1, -2}, 5), "no error") << name;
  // f32 cannot represent every step above 2^24.
  EXPECT_NE(state_error("w", {1}, (1 << 24) - 1), "no error");
  EXPECT_EQ(state_error("w", {1}, 1 << 24), "no error");
}

}  // namespace
