// bench ranks with the options of a model: a training step of ranks that have a batch each, where each rank
// makes the whole update, and where they divide it, and of ranks that divide the sequences of one batch, as a
// share of what all of them train alone at the same time.
#include <tilegrad/ops/ring_attention.h>
#include "tools/bench/modes.h"
#include "tools/bench/rank_times.h"
#include "tools/bench/step_times.h"

namespace tg::bench {

namespace {

struct StepWay {
  const char* name;
  bool together, divides_update, divides_tokens, sums_early = false;
};
constexpr StepWay step_ways[] = {{"step, each alone", false, false, false},
                                 {"step, whole update", true, false, false},
                                 {"step, divided update", true, true, false},
                                 {"step, early sums", true, true, false, true},
                                 {"step, divided sequences", true, true, true}};

// What keeps ranks from dividing the sequences of a model; "": nothing.
std::string mistake_in_dividing(const nn::ModelConfig& config, int ranks) {
  if (ranks > most_ring_ranks) return "at most " + std::to_string(most_ring_ranks) + " ranks divide them";
  if (ranks > 1 && config.context % (2 * ranks) != 0)
    return "--context " + std::to_string(config.context) + " is no multiple of " + std::to_string(2 * ranks);
  if (ranks > 1 && config.dropout > 0) return "there is no dropout of attention weights then";
  return "";
}

}  // namespace

void report_rank_steps(const Settings& settings, Report& report) {
  const nn::ModelConfig& config = *settings.train.model;
  const std::shared_ptr<Communicator>& ranks = settings.ranks;
  const int n = ranks->size();
  nn::Params params(0, f32, settings.device);
  const nn::Model model(params, config);
  double alone = 0;  // tokens/s of all ranks
  for (const StepWay& way : step_ways) {
    if (const std::string mistake = mistake_in_dividing(config, n); way.divides_tokens && !mistake.empty()) {
      std::printf("no step with divided sequences: %s\n", mistake.c_str());
      continue;
    }
    const optim::AdamW optimizer(params.all(), {.ranks = way.divides_update ? ranks : nullptr});
    train::ProgramOptions options{.batch = settings.train.batch,
                                  .threads = 1,
                                  .precision = nn::precision_named(settings.dtype_name()),
                                  .accumulate = way.together && !way.divides_tokens ? n : 1,
                                  .context_parallel = way.divides_tokens,
                                  .scatter_early = way.sums_early,
                                  .recompute = settings.train.recompute,
                                  .memory_budget = settings.train.budget};
    if (way.together) options.ranks = ranks;
    train::TrainingProgram training(model, optimizer, options);
    const TrainBatch batch(options.batch * options.accumulate, config.context, config.vocabulary);
    const RankRuns counts = settings.seconds == 0 ? RankRuns{1, 3, 1} : RankRuns{3, 7, 25};
    const double seconds = seconds_of_step(
        *ranks, counts, [&] { return training.start(batch.tokens, batch.targets, bench_learning_rate); });
    training.gather_weights();
    const double rate = rate_of_all(*ranks, static_cast<double>(batch.tokens.size()), seconds, way.together);
    if (!way.together) alone = rate;
    Row row{way.name, std::to_string(options.batch) + "x" + std::to_string(config.context),
            settings.dtype_name(), std::to_string(n) + " ranks", 1};
    row.ms = seconds * 1e3;
    row.rate = rate, row.unit = "tokens/s";
    if (way.together) row.share = rate / alone, row.of = all_alone;
    report.add(row);
  }
}

}  // namespace tg::bench
