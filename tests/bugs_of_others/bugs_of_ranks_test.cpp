// Reproduces public bugs of multi-rank computations: collectives, steps and validations. Results of several
// ranks are compared with a single rank (tests/support/ranks.h).
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include <tilegrad/tilegrad.h>
#include <tilegrad/train/trainer.h>
#include "tests/support/ranks_training.h"

namespace tg {
namespace {

CompileOptions of(Communicator& ranks) {
  return {.threads = 1, .ranks = {std::shared_ptr<void>(), &ranks}};
}

// https://github.com/pytorch/pytorch/issues/159548 https://github.com/pytorch/pytorch/issues/74809
// https://github.com/pytorch/pytorch/issues/163483
// A transposed tensor was gathered in memory order, so its elements were at wrong positions.
TEST(BugsOfOthersRanks, GatheredTransposedTensorKeepsItsElements) {
  run_ranks(2, [](Communicator& ranks) {
    const auto element = [](int r, int i, int j) { return static_cast<float>(100 * r + 10 * i + j); };
    std::vector<float> own;
    for (int i = 0; i < 2; ++i)
      for (int j = 0; j < 3; ++j) own.push_back(element(ranks.rank(), i, j));
    Graph g;
    const Tensor x = g.input("x", {2, 3}, f32);
    const Array y = eval(all_gather({transpose(x, 0, 1)}, 2)[0], {{x, own}}, of(ranks));
    for (int r = 0; r < 2; ++r)
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 3; ++j)
          EXPECT_EQ(y.at((r * 3 + j) * 2 + i), element(r, i, j)) << r << " " << i << " " << j;
  });
}

// https://github.com/pytorch/pytorch/issues/23144 https://github.com/NVIDIA/nccl/issues/1906
// Shards were not in the order of the ranks. Shard r must be the shard of rank r.
TEST(BugsOfOthersRanks, GatheredPiecesAreInTheOrderOfTheRanks) {
  run_ranks(3, [](Communicator& ranks) {
    Graph g;
    const Tensor x = g.input("x", {1}, f32);
    const std::vector<float> own{static_cast<float>(ranks.rank())};
    const Array y = eval(all_gather({x}, 3)[0], {{x, own}}, of(ranks));
    for (int r = 0; r < 3; ++r) EXPECT_EQ(y.at(r), r);
  });
}

double bf16_sum(Communicator& ranks, bool wide) {
  Graph g;
  const Tensor x = g.input("x", {1}, bf16);
  const std::vector<float> own{ranks.rank() == 0 ? 256.f : 1.f};
  return eval(all_reduce({x}, 4, {.wide = wide})[0], {{x, Array::of({1}, own).to(bf16)}}, of(ranks)).at(0);
}

// https://github.com/deepseek-ai/DeepEP/issues/176 https://github.com/tenstorrent/tt-metal/issues/37884
// Sums of 16-bit types were rounded after every addition, so the sum 256 + 1 + 1 + 1 was 256. The sum 259
// must be rounded once, to 260.
TEST(BugsOfOthersRanks, SumOfBf16OverRanksIsRoundedOnce) {
  run_ranks(4, [](Communicator& ranks) { EXPECT_EQ(bf16_sum(ranks, false), 260); });
}

// https://github.com/pytorch/pytorch/issues/106395 https://github.com/deepspeedai/DeepSpeed/issues/2768
// Gradients that should be summed in f32 were summed in bf16 and then converted to f32.
TEST(BugsOfOthersRanks, WideSumOfBf16IsExact) {
  run_ranks(4, [](Communicator& ranks) { EXPECT_EQ(bf16_sum(ranks, true), 259); });
}

// The loss and norm of the first step, which all ranks compute. Also the mean loss over all targets of a
// batch with all rows.
struct FirstStep {
  float loss, norm, expected_loss;
};
FirstStep first_step(Communicator& ranks) {
  using namespace testing;
  nn::Params params(1);
  const nn::Model model(params, ranks_gpt());
  const StepRows rows(0, micro_batches);
  FirstStep step{};
  step.expected_loss = train::EvaluationProgram(model, {.batch = rank_batch * micro_batches, .threads = 1})
                           .run(rows.x, rows.y);
  train::ProgramOptions options{.batch = rank_batch, .threads = 1, .accumulate = micro_batches};
  if (ranks.size() > 1) options.ranks = {std::shared_ptr<void>(), &ranks};
  const optim::AdamW optimizer(params.all(), {.clip = 0.5, .ranks = options.ranks});
  train::TrainingProgram training(model, optimizer, options, 5);
  const auto result = training.run(rows.x, rows.y, 1e-2);
  step.loss = result.loss, step.norm = result.grad_norm;
  return step;
}
std::vector<FirstStep> first_steps(int ranks) {
  std::vector<FirstStep> steps;
  for (const std::string& bytes : ask_ranks(ranks, [](Communicator& c) {
         const FirstStep step = first_step(c);
         return std::string(reinterpret_cast<const char*>(&step), sizeof step);
       })) {
    FirstStep step{};
    if (bytes.size() == sizeof step) std::memcpy(&step, bytes.data(), sizeof step);
    steps.push_back(step);
  }
  return steps;
}

// https://github.com/pytorch/torchtitan/issues/766 https://github.com/pytorch/pytorch/issues/72548
// Each rank clipped by the norm of its own part of the gradient. All ranks must clip by the norm of the
// complete gradient.
TEST(BugsOfOthersRanks, ClipUsesTheNormOfAllRanks) {
  const float alone = first_steps(1)[0].norm;
  EXPECT_GT(alone, 0.5f);  // the gradient is clipped
  for (const FirstStep& step : first_steps(2)) EXPECT_EQ(step.norm, alone);
}

// https://github.com/pytorch/torchtitan/issues/1842 https://github.com/PrimeIntellect-ai/prime-rl/pull/1960
// https://github.com/vllm-project/speculators/pull/942
// If ranks had different numbers of targets, their means were averaged. The loss must be the mean over all
// targets.
TEST(BugsOfOthersRanks, GradientIsTheMeanOverAllTargetsOfAllRanks) {
  for (const FirstStep& step : first_steps(2)) EXPECT_NEAR(step.loss, step.expected_loss, 1e-4);
}

// https://github.com/stanford-crfm/mistral/issues/194 https://github.com/k2-fsa/icefall/issues/1616
// https://github.com/vllm-project/speculators/pull/427
// All ranks used the same batches, so a step learned from only a part of its data.
TEST(BugsOfOthersRanks, EachRankUsesItsOwnBatches) {
  const FirstStep alone = first_steps(1)[0];
  for (const FirstStep& step : first_steps(4)) {
    EXPECT_NEAR(step.loss, step.expected_loss, 1e-4);
    EXPECT_EQ(step.norm, alone.norm);
  }
}

// All targets of a batch are the same class. The last validation batch has one target. In other batches,
// every token has a target.
struct ClassBatches : train::Batches {
  void training(std::uint64_t, std::int64_t, Tokens x, Tokens y) const override { fill(0, x, y); }
  std::int64_t validation_count() const override { return 3; }
  void validation(std::int64_t k, std::int64_t, Tokens x, Tokens y) const override {
    fill(k, x, y);
    if (k == 2) std::ranges::fill(y.subspan(1), -100);
  }
  static void fill(std::int64_t target, Tokens x, Tokens y) {
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<std::int32_t>(i % 7), y[i] = static_cast<std::int32_t>(target);
  }
};

struct RankRun {
  nn::Params params{1};
  nn::Model model{params, {.vocabulary = 7, .context = 4, .layers = 1, .heads = 2, .width = 8, .std = 0.3}};
  optim::AdamW optimizer{params.all()};
  ClassBatches batches;

  train::Trainer::Options options(Communicator& ranks, std::int64_t steps) const {
    return {.steps = steps,
            .schedule = {.peak = 0, .floor = 0, .warmup = 0, .steps = steps},
            .program = {.batch = 2,
                        .threads = 1,
                        .accumulate = ranks.size(),
                        .ranks = {std::shared_ptr<void>(), &ranks}}};
  }
};

// https://github.com/speechbrain/speechbrain/pull/2051 https://github.com/LBANN/lbann/issues/34
// If a rank received a request to stop, it ended, and the others waited for it. If one rank stops, all ranks
// must stop at the same step.
TEST(BugsOfOthersRanks, StopOfOneRankStopsAll) {
  run_ranks(
      2,
      [](Communicator& ranks) {
        RankRun r;
        int asked = 0;
        train::Trainer trainer(r.model, r.optimizer, r.batches, r.options(ranks, 50),
                               {.stop = [&] { return ranks.rank() == 1 && ++asked > 3; }});
        EXPECT_EQ(trainer.run().step, 3);
      },
      10);
}

// https://github.com/facebookresearch/fairchem/pull/269
// The validation loss of several ranks was the loss of one rank. It must be the mean over the targets of all
// batches.
TEST(BugsOfOthersRanks, ValidationOfRanksIsTheMeanOfAllTargets) {
  run_ranks(2, [](Communicator& ranks) {
    RankRun r;
    train::EvaluationProgram evaluation(r.model, {.batch = 2, .threads = 1});
    double sum = 0;
    for (std::int64_t k = 0; k < 3; ++k) {
      std::vector<std::int32_t> x(8), y(8);
      r.batches.validation(k, 3, x, y);
      sum += evaluation.run(x, y) * (k == 2 ? 1. : 8.);
    }
    train::Trainer trainer(r.model, r.optimizer, r.batches, r.options(ranks, 1), {});
    trainer.run();
    EXPECT_NEAR(trainer.rows().back().val_loss, sum / 17, 1e-5);
  });
}

}  // namespace
}  // namespace tg
