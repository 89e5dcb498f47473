// Tests that ranks can resume a run even if only one rank has the metrics rows.
#include "tests/support/ranks_faults.h"

namespace {

using namespace tg;
using namespace tg::testing;

// Trains, or resumes from `directory`, at a learning rate. Returns the state afterward.
train::Trainer::State trained(Communicator& all, const std::string& directory, std::int64_t steps,
                              double rate, bool divides, bool resumes = false) {
  const std::shared_ptr<Communicator> ranks(std::shared_ptr<void>(), &all);
  nn::Params params(1);
  const nn::Model model(params, {.vocabulary = 13, .context = 8, .layers = 1, .heads = 2, .width = 16});
  const FaultyBatches batches({}, all.size());
  const optim::AdamW optimizer(params.all(), {.ranks = divides ? ranks : nullptr});
  std::optional<io::CheckpointStore> store;
  if (all.rank() == 0) store.emplace(directory);
  const optim::Schedule constant{.peak = rate, .floor = rate, .warmup = 0, .steps = steps};
  train::Trainer trainer(model, optimizer, batches,
                         {.steps = steps,
                          .schedule = constant,
                          .program = {.batch = 2, .threads = 1, .accumulate = 12, .ranks = ranks},
                          .validate_every = 2,
                          .save_every = 100},
                         {.files = [&](const auto&) -> std::vector<io::CheckpointFile> {
                           return {{"model.safetensors", params.all(), {}}};
                         }},
                         store ? &*store : nullptr);
  if (resumes) trainer.resume(io::Checkpoint(directory));
  return trainer.run();
}

// Later losses are worse. If a rank did not know the earlier losses, it would save a later step as the best,
// without the other ranks.
TEST(RanksResume, AllKnowTheBestLoss) {
  for (const bool divides : {false, true}) {
    const TemporaryDirectory directory;
    const std::string run = directory / "run";
    run_ranks(4, [&](Communicator& ranks) { trained(ranks, run, 2, 0.01, divides); });
    for (const int n : {3, 1}) {
      const std::string copy = directory / ("on" + std::to_string(n));
      std::filesystem::copy(run, copy, std::filesystem::copy_options::recursive);
      run_ranks(n, [&](Communicator& ranks) {
        const train::Trainer::State state = trained(ranks, copy, 10, 3, divides, true);
        EXPECT_EQ(state.step, 10);
        EXPECT_EQ(state.best_step, 2);
        EXPECT_LT(state.best_loss, 3);
      });
    }
  }
}

}  // namespace
