// Tests the mean of a Trainer's validation, the best step, and the files of a stopped run.
#include <tilegrad/train/trainer.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include <tilegrad/nn/models/model.h>
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;
using tg::testing::TemporaryDirectory;

constexpr std::int64_t context = 4, batch = 2, vocabulary = 7;

// In validation batch k, every target has class k, so all batches have different losses. Training uses class
// 0.
struct ClassBatches : train::Batches {
  void training(std::uint64_t, std::int64_t, Tokens x, Tokens y) const override { fill(0, x, y); }
  std::int64_t validation_count() const override { return 3; }
  void validation(std::int64_t k, std::int64_t, Tokens x, Tokens y) const override { fill(k, x, y); }
  static void fill(std::int64_t target, Tokens x, Tokens y) {
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<std::int32_t>(i % vocabulary), y[i] = static_cast<std::int32_t>(target);
  }
};

struct Training {
  nn::Params params{1};
  nn::Model model{
      params,
      {.vocabulary = vocabulary, .context = context, .layers = 1, .heads = 2, .width = 8, .std = 0.3}};
  optim::AdamW optimizer{params.all()};
  ClassBatches batches;
  std::vector<io::CheckpointFile> files() const { return {{"model.safetensors", params.all(), {}}}; }
};

TEST(Trainer, ValidationLossIsTheMeanOfItsBatches) {
  Training r;
  train::EvaluationProgram evaluation(r.model, {.batch = batch});
  double mean = 0;
  for (std::int64_t k = 0; k < 3; ++k) {
    std::vector<std::int32_t> x(batch * context), y(x.size());
    ClassBatches::fill(k, x, y);
    mean += evaluation.run(x, y) / 3;
  }
  train::Trainer trainer(
      r.model, r.optimizer, r.batches,
      {.steps = 1, .schedule = {.peak = 0, .floor = 0, .warmup = 0, .steps = 1}, .program = {.batch = batch}},
      {});
  trainer.run();
  EXPECT_NEAR(trainer.rows().back().val_loss, mean, 1e-5);
}

// The last batch has one target. The mean must be over all 17 targets, so the weight of this target is 1/17,
// not 1/3.
TEST(Trainer, ValidationLossIsTheMeanOfItsTargets) {
  Training r;
  const struct : ClassBatches {
    void validation(std::int64_t k, std::int64_t, Tokens x, Tokens y) const override {
      fill(k, x, y);
      if (k == 2) std::ranges::fill(y.subspan(1), -100);
    }
  } batches;
  train::EvaluationProgram evaluation(r.model, {.batch = batch});
  double sum = 0;
  for (std::int64_t k = 0; k < 3; ++k) {
    std::vector<std::int32_t> x(batch * context), y(x.size());
    batches.validation(k, 3, x, y);
    sum += evaluation.run(x, y) * (k == 2 ? 1.0 : 1.0 * batch * context);
  }
  train::Trainer trainer(
      r.model, r.optimizer, batches,
      {.steps = 1, .schedule = {.peak = 0, .floor = 0, .warmup = 0, .steps = 1}, .program = {.batch = batch}},
      {});
  trainer.run();
  EXPECT_NEAR(trainer.rows().back().val_loss, sum / 17, 1e-5);
}

// Training uses one class of three, so the validation loss increases in the end.
TEST(Trainer, BestStepHasTheLowestValidationLoss) {
  Training r;
  train::Trainer trainer(r.model, r.optimizer, r.batches,
                         {.steps = 12,
                          .schedule = {.peak = 0.05, .floor = 0.05, .warmup = 0, .steps = 12},
                          .program = {.batch = batch},
                          .validate_every = 1,
                          .validation_batches = 3},
                         {});
  const train::Trainer::State state = trainer.run();
  const auto least = std::ranges::min_element(trainer.rows(), {}, &train::MetricsRow::val_loss);
  EXPECT_EQ(state.best_step, least->step);
  EXPECT_EQ(static_cast<float>(state.best_loss), least->val_loss);
  EXPECT_LT(state.best_step, 12);
}

// In fine-tuning, the first row is the loss of the base model. It is never the best step.
TEST(Trainer, InitialValidationIsARowOfStepZero) {
  const TemporaryDirectory dir;
  Training r;
  std::vector<std::int32_t> x(batch * context), y(x.size());
  ClassBatches::fill(0, x, y);
  const float before = train::EvaluationProgram(r.model, {.batch = batch}).run(x, y);
  train::Trainer::Options options{.steps = 1,
                                  .schedule = {.peak = 0.5, .floor = 0.5, .warmup = 0, .steps = 1},
                                  .program = {.batch = batch},
                                  .validation_batches = 1,
                                  .validate_first = true};
  std::vector<std::int64_t> validated;
  const train::Trainer::Hooks hooks{
      .validated = [&](const train::MetricsRow& row) { validated.push_back(row.step); },
      .files = [&](const auto&) { return r.files(); }};
  {
    io::CheckpointStore store(dir / "run");
    train::Trainer trainer(r.model, r.optimizer, r.batches, options, hooks, &store);
    EXPECT_EQ(trainer.run().best_step, 1);
    EXPECT_EQ(trainer.rows().at(0).step, 0);
    EXPECT_EQ(trainer.rows()[0].val_loss, before);
    EXPECT_TRUE(std::isnan(trainer.rows()[0].train_loss));
  }
  options.steps = 2;  // a continued run already has its first row
  io::CheckpointStore store(dir / "run");
  train::Trainer trainer(r.model, r.optimizer, r.batches, options, hooks, &store);
  trainer.resume(io::Checkpoint(dir / "run"));
  trainer.run();
  EXPECT_EQ(validated, (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(train::read_metrics((dir / "run") + "/metrics.jsonl").size(), 3u);
}

TEST(Trainer, StoppedRunIsSavedAtItsStep) {
  const TemporaryDirectory dir;
  Training r;
  io::CheckpointStore store(dir / "run");
  int asked = 0;
  train::Trainer trainer(
      r.model, r.optimizer, r.batches,
      {.steps = 100, .schedule = {.peak = 0.01, .steps = 100}, .program = {.batch = batch}},
      {.stop = [&] { return ++asked > 3; }, .files = [&](const auto&) { return r.files(); }}, &store);
  EXPECT_EQ(trainer.run().step, 3);
  ASSERT_TRUE(store.has_checkpoint());
  EXPECT_EQ(io::Checkpoint(dir / "run").step(), 3);
}

TEST(Trainer, InvalidOptionsAreRejected) {
  Training r;
  const auto refusal = [&](train::Trainer::Options options) {
    options.program.batch = batch;
    return error_of([&] { train::Trainer(r.model, r.optimizer, r.batches, options, {}); });
  };
  EXPECT_NE(refusal({.steps = -1}).find("[trainer] steps is out of range: got -1"), std::string::npos);
  EXPECT_NE(refusal({.validate_every = 0})
                .find("validate_every is out of range: got 0, expected a whole number of at least 1"),
            std::string::npos);
  EXPECT_NE(refusal({.validation_batches = 0}).find("validation_batches is out of range: got 0"),
            std::string::npos);
  EXPECT_NE(refusal({.save_every = 0}).find("save_every is out of range: got 0"), std::string::npos);
  EXPECT_NE(refusal({.program = {.plan_only = true}}).find("plan_only"), std::string::npos);
  const struct : ClassBatches {
    std::int64_t answers() const override { return 1; }
  } asking;
  EXPECT_NE(error_of([&] {
              train::Trainer(r.model, r.optimizer, asking, {.program = {.batch = batch}}, {});
            }).find("needs program.predictions"),
            std::string::npos);
}

TEST(Trainer, StateOfADifferentStepIsRejected) {
  const TemporaryDirectory dir;
  Training r;
  io::write_checkpoint(dir / "three", 3, 2, r.files());
  train::Trainer trainer(r.model, r.optimizer, r.batches, {.steps = 9, .program = {.batch = batch}}, {});
  for (const train::Trainer::State& state : {train::Trainer::State{4, 2}, train::Trainer::State{3, 1}})
    EXPECT_EQ(error_of([&] { trainer.resume(io::Checkpoint(dir / "three"), state); }),
              "[resume] " + (dir / "three") + ": the run is at step " + std::to_string(state.step) +
                  " and its best one is " + std::to_string(state.best_step) +
                  ", but the checkpoint is of step 3 and names 2");
}

// The checksums of these checkpoints are correct. The first file has the weights, and the second file has the
// error.
TEST(Trainer, ImpossibleStateIsRejectedBeforeWeightsChange) {
  const TemporaryDirectory dir;
  Training r;
  const train::Trainer::Options three{
      .steps = 3, .schedule = {.peak = 0.01, .steps = 3}, .program = {.batch = batch}};
  train::Trainer(r.model, r.optimizer, r.batches, three, {}).run();
  // Resumes after the first element of a tensor was changed.
  const auto expect = [&](const std::string& tensor, double first, const std::string& refusal) {
    const std::string path = dir / (tensor + std::to_string(first));
    std::vector<io::CheckpointFile> files = r.files();
    files.push_back({"optimizer.safetensors", r.optimizer.state(), {}});
    for (Parameter& p : files[1].parameters) {
      if (p.name() != tensor) continue;
      Array values = p.read();
      values.set(0, first);
      p = Parameter(tensor, values);
    }
    io::write_checkpoint(path, 3, 0, files);
    Training other;
    const Array before = other.params.all()[0].read();
    train::Trainer trainer(other.model, other.optimizer, other.batches, three,
                           {.files = [&](const auto&) { return other.files(); }});
    EXPECT_EQ(error_of([&] { trainer.resume(io::Checkpoint(path)); }),
              refusal.empty() ? "no error" : "[resume] " + path + "/optimizer.safetensors: " + refusal);
    EXPECT_EQ(other.params.all()[0].read().same_bits(before), !refusal.empty()) << tensor;
  };
  expect("unchanged", 0, "");
  expect("optimizer.v.transformer.wte.weight", -1,
         "optimizer.v.transformer.wte.weight has -1.000000 at element 0, which is never negative");
  expect("optimizer.step", -5, "optimizer.step has -5.000000 at element 0, which is never negative");
  expect("optimizer.step", 2, "its performed and skipped steps are 2, but the run is at step 3");
}

}  // namespace
