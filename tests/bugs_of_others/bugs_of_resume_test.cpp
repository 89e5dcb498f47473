// Reproduces public bugs of stopped and resumed runs. Compares an uninterrupted run of 6 steps with a run
// that stops after 3 steps and is resumed.
#include <tilegrad/train/trainer.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <tilegrad/nn/models/model.h>
#include "tests/support/files.h"

namespace tg {
namespace {

using testing::error_of;
using testing::TemporaryDirectory;

constexpr std::int64_t context = 4, batch = 2, vocabulary = 7, steps = 6;

// The contents of a batch depend on its number. The numbers of the used batches are recorded. All targets of
// a validation batch are the same class.
struct Numbered : train::Batches {
  mutable std::vector<std::int64_t> asked = {};
  void training(std::uint64_t, std::int64_t n, Tokens x, Tokens y) const override {
    asked.push_back(n);
    fill(n, x, y);
  }
  std::int64_t validation_count() const override { return 3; }
  void validation(std::int64_t k, std::int64_t, Tokens x, Tokens y) const override { fill(k, x, y); }
  static void fill(std::int64_t n, Tokens x, Tokens y) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<std::int32_t>((i + static_cast<std::size_t>(n)) % vocabulary);
      y[i] = static_cast<std::int32_t>(n % vocabulary);
    }
  }
};

struct Setting {
  double dropout = 0;
  std::optional<optim::LossScale> loss_scale = {};
};

struct Training {
  nn::Params params{1};
  nn::Model model;
  optim::AdamW optimizer;
  Numbered batches;
  train::Trainer trainer;

  explicit Training(const Setting& setting, std::int64_t until, io::CheckpointStore* store = nullptr)
      : model(params, {.vocabulary = vocabulary,
                       .context = context,
                       .layers = 1,
                       .heads = 2,
                       .width = 8,
                       .dropout = setting.dropout,
                       .std = 0.3}),
        optimizer(params.all(), {.loss_scale = setting.loss_scale}),
        trainer(model, optimizer, batches,
                {.steps = until,
                 .schedule = {.peak = 0.06,
                              .floor = 0,
                              .warmup = 0,
                              .steps = steps,
                              .kind = optim::Schedule::Kind::linear},
                 .program = {.batch = batch, .threads = 1},
                 .validate_every = 1},
                {.files = [this](const auto&) { return files(); }}, store) {}
  std::vector<io::CheckpointFile> files() const { return {{"model.safetensors", params.all(), {}}}; }
  std::vector<Array> weights() const {
    std::vector<Array> all;
    for (const Parameter& p : params.all()) all.push_back(p.read());
    return all;
  }
};

// Runs 3 steps, and resumes them in a second run.
struct Resumed {
  const TemporaryDirectory dir;
  std::optional<io::CheckpointStore> store;
  std::optional<Training> run;

  explicit Resumed(const Setting& setting = {}) {
    store.emplace(dir / "run");
    {
      Training first(setting, 3, &*store);
      first.trainer.run();
    }
    run.emplace(setting, steps, &*store);
    run->trainer.resume(io::Checkpoint(dir / "run"));
  }
};

void expect_as_unstopped(const Setting& setting) {
  Training whole(setting, steps);
  whole.trainer.run();
  Resumed r(setting);
  r.run->trainer.run();
  const std::vector<Array> a = whole.weights(), b = r.run->weights();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].same_bits(b[i])) << i;
}

// https://github.com/huggingface/accelerate/issues/2016
// https://github.com/huggingface/transformers/pull/40691
// A resumed run used the first batches again. It must continue with the next batches.
TEST(BugsOfOthersResume, DataContinueWhereTheyStopped) {
  Resumed r;
  r.run->trainer.run();
  EXPECT_EQ(r.run->batches.asked, (std::vector<std::int64_t>{3, 4, 5}));
}

// https://github.com/ultralytics/yolov5/issues/292 https://github.com/lightly-ai/lightly-train/pull/301
// https://github.com/pytorch/pytorch/issues/60265
// https://github.com/Lightning-AI/pytorch-lightning/issues/1772
// https://github.com/Lightning-AI/pytorch-lightning/issues/4655
// After a resume, the schedule restarted, or differed from the schedule of an uninterrupted run. Step t must
// have the same rate in both.
TEST(BugsOfOthersResume, LearningRateContinuesAlongTheSchedule) {
  Resumed r;
  r.run->trainer.run();
  const std::vector<train::MetricsRow>& rows = r.run->trainer.rows();
  ASSERT_EQ(rows.size(), 6u);
  for (std::size_t t = 0; t < rows.size(); ++t)
    EXPECT_NEAR(rows[t].lr, 0.06 * (1 - static_cast<double>(t) / 6), 1e-7) << t;
}

// https://github.com/KempnerInstitute/KempnerForge/pull/115
// https://github.com/thinking-machines-lab/tinker-feedback/issues/126
// The optimizer's moments were not restored, so the first steps after a resume were different.
TEST(BugsOfOthersResume, MomentsContinue) {
  expect_as_unstopped({});
}

// https://github.com/huggingface/candle/pull/3819
// The optimizer's step count restarted at 0. This made the bias correction of the moments wrong.
TEST(BugsOfOthersResume, BiasCorrectionContinues) {
  const Resumed r;
  for (const Parameter& p : r.run->optimizer.state()) {
    if (p.name() == "optimizer.step") EXPECT_EQ(p.read().item<float>(), 3);
  }
  expect_as_unstopped({});
}

// https://github.com/huggingface/transformers/issues/34053
// https://github.com/huggingface/transformers/pull/11663
// https://github.com/huggingface/accelerate/issues/4289 https://github.com/mosaicml/composer/pull/1376
// The loss scale was reset to its initial value after a resume. Here it doubles at steps 2, 4 and 6.
TEST(BugsOfOthersResume, LossScaleContinues) {
  Resumed r({.loss_scale = optim::LossScale{.initial = 8, .interval = 2}});
  r.run->trainer.run();
  EXPECT_EQ(r.run->trainer.last().loss_scale, 64);
}

// https://github.com/facebookresearch/metaseq/issues/3
// The loss scale grows after a number of successful steps. After a resume, the count of these steps restarted
// at 0. Here the scale grows after 4 steps, and the run has 6.
TEST(BugsOfOthersResume, StepsUntilTheScaleGrowsContinue) {
  Resumed r({.loss_scale = optim::LossScale{.initial = 8, .interval = 4}});
  r.run->trainer.run();
  EXPECT_EQ(r.run->trainer.last().loss_scale, 16);
}

// https://github.com/marin-community/levanter/pull/378
// https://github.com/vllm-project/speculators/issues/1027
// Random numbers restarted, so dropout masks were repeated. The random numbers of a step must depend on the
// step's number.
TEST(BugsOfOthersResume, DropoutContinuesWithItsOwnNumbers) {
  expect_as_unstopped({.dropout = 0.4});
}

// https://github.com/OpenRLHF/OpenRLHF/pull/1333 https://github.com/facebookresearch/fairchem/pull/349
// The best loss was forgotten, so the first validation after a resume replaced the best checkpoint.
TEST(BugsOfOthersResume, BestLossIsKnownAfterAResume) {
  const Resumed r;
  float best = std::numeric_limits<float>::infinity();
  for (const train::MetricsRow& row : r.run->trainer.rows()) best = std::min(best, row.val_loss);
  ASSERT_TRUE(std::isfinite(best));
  EXPECT_EQ(static_cast<float>(r.run->trainer.state().best_loss), best);
}

// https://github.com/Lightning-AI/pytorch-lightning/issues/688 https://github.com/CanReader/FastNN/issues/13
// https://github.com/Q00/ouroboros/issues/1830
// The previous checkpoint was removed before the new one was complete, so a failed save left no checkpoint.
TEST(BugsOfOthersResume, FailedSaveLeavesTheLastCheckpoint) {
  const TemporaryDirectory dir;
  io::CheckpointStore store(dir / "run");
  Parameter p("w", Array({2}, f32));
  const std::vector<io::CheckpointFile> files{{"model.safetensors", {p}, {}}};
  store.save(1, 1, files);
  p.write(Array::of({2}, std::vector<float>{1, std::nanf("")}));
  EXPECT_THROW(store.save(2, 1, files), Error);
  ASSERT_TRUE(store.has_checkpoint());
  EXPECT_EQ(io::Checkpoint(dir / "run").step(), 1);
}

// https://github.com/pytorch/pytorch/issues/8282 https://github.com/pytorch/pytorch/issues/165873
// If values did not have the shape of the parameter, they were repeated or truncated. Such values must be
// rejected.
TEST(BugsOfOthersResume, CheckpointOfDifferentShapeIsRejected) {
  const TemporaryDirectory dir;
  io::save_parameters(dir / "m.safetensors", {Parameter("w", Array({1}, f32))});
  EXPECT_NE(error_of([&] {
              io::load_parameters(dir / "m.safetensors", {Parameter("w", Array({4}, f32))});
            }).find("w is f32 [1], expected f32 [4]"),
            std::string::npos);
}

// https://github.com/Lightning-AI/pytorch-lightning/issues/2924
// https://github.com/huggingface/transformers/issues/41898 https://github.com/OpenRLHF/OpenRLHF/pull/1336
// The validation loss was the mean of the means of its batches. It must be the mean over all targets. Here
// the last batch has only one target.
TEST(BugsOfOthersResume, ValidationWeightsBatchesByTheirTargets) {
  const struct : Numbered {
    void validation(std::int64_t k, std::int64_t, Tokens x, Tokens y) const override {
      fill(k, x, y);
      if (k == 2) std::ranges::fill(y.subspan(1), -100);
    }
  } batches;
  Training r({}, 1);
  train::EvaluationProgram evaluation(r.model, {.batch = batch, .threads = 1});
  double sum = 0;
  for (std::int64_t k = 0; k < 3; ++k) {
    std::vector<std::int32_t> x(batch * context), y(x.size());
    batches.validation(k, 3, x, y);
    sum += evaluation.run(x, y) * (k == 2 ? 1. : 8.);
  }
  train::Trainer trainer(r.model, r.optimizer, batches,
                         {.steps = 1,
                          .schedule = {.peak = 0, .floor = 0, .warmup = 0, .steps = 1},
                          .program = {.batch = batch, .threads = 1}},
                         {});
  trainer.run();
  EXPECT_NEAR(trainer.rows().back().val_loss, sum / 17, 1e-5);
}

}  // namespace
}  // namespace tg
