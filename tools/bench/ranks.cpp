// bench ranks measures the ranks that `launch` started. Without a model, it measures:
// - the time of each collective, on tensors of several sizes and on the list of GPT-2 124M's gradients
// - ring_attention with a sequence that is split across the ranks, compared with flash_attn on a complete
//   sequence per rank, on all ranks at the same time
//
// If a model is specified, training steps are measured instead. They are compared with ranks that train
// separately at the same time. There are three ways to train together. Each rank has a batch and computes the
// complete update, or each rank has a batch and updates its shard. In the third way, the sequences of one
// batch are split across the ranks.
//
// The rate of a collective is NCCL's "bus bandwidth". It is the number of bytes that each rank sends in the
// fastest algorithm, divided by the measured time.
#include <tilegrad/ops/ranks.h>
#include <tilegrad/ops/ring_attention.h>
#include "tools/bench/attention_programs.h"
#include "tools/bench/report.h"

namespace tg::bench {

namespace {

// Sizes of the parameters of GPT-2 124M: 12 blocks of width 768, and the embeddings.
Sizes gpt2_gradients() {
  constexpr std::int64_t w = 768;
  Sizes all;
  for (int block = 0; block < 12; ++block)
    all.insert(all.end(), {w, w, w * 3 * w, 3 * w, w * w, w, w, w, w * 4 * w, 4 * w, 4 * w * w, w});
  all.insert(all.end(), {50257 * w, 1024 * w, w, w});
  return all;
}

struct Exchange {
  const char* name;
  TensorList (*call)(const TensorList&, int ranks);
  double (*sent)(double bytes, double ranks);  // bytes sent per rank by the fastest algorithm, for an input
                                               // of `bytes`
};
const Exchange exchanges[] = {
    {"all_reduce", [](const TensorList& x, int n) { return all_reduce(x, n); },
     [](double s, double n) { return 2 * (n - 1) / n * s; }},
    {"all_reduce, wide", [](const TensorList& x, int n) { return all_reduce(x, n, {.wide = true}); },
     [](double s, double n) { return 2 * (n - 1) / n * s; }},
    {"reduce_scatter", [](const TensorList& x, int n) { return reduce_scatter(x, n); },
     [](double s, double n) { return (n - 1) / n * s; }},
    {"all_gather", [](const TensorList& x, int n) { return all_gather(x, n); },
     [](double s, double n) { return (n - 1) * s; }},
    {"all_to_all", [](const TensorList& x, int n) { return all_to_all(x, n); },
     [](double s, double n) { return (n - 1) / n * s; }},
    {"ppermute", [](const TensorList& x, int n) { return ppermute(x, n, 1); },
     [](double s, double) { return s; }}};

std::string describe(int ranks) {
  return std::to_string(ranks) + " ranks";
}

// `sizes`: elements of each tensor.
void report_exchange(const Exchange& e, const std::string& shape, const Sizes& sizes, Report& report) {
  const Settings& settings = report.settings;
  const int n = settings.ranks->size();
  Graph g;
  TensorList xs;
  double bytes = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::int64_t size = (sizes[i] + n - 1) / n * n;  // so that all collectives can divide it
    xs.push_back(g.param(Parameter("x" + std::to_string(i), Array({size}, settings.dtype), settings.device)));
    bytes += static_cast<double>(size) * static_cast<double>(size_of(settings.dtype));
  }
  Program program =
      compile(g, e.call(xs, n), {.device = settings.device, .threads = 1, .ranks = settings.ranks});
  // The number of runs is fixed and does not depend on time, because all ranks must run equally often.
  std::vector<double> runs;
  for (int i = 0; i < 15; ++i)
    runs.push_back(settings.on_cpu() ? seconds_of([&] { program.run(); }) : profiled_seconds(program));
  const double seconds = median(runs);
  report.add(
      report.row(e.name, shape, describe(n), 1).time(seconds).at(e.sent(bytes, n) / seconds * 1e-9, "GB/s"));
}

// The work of all ranks per second, if this rank needs `seconds` for `work`. If `together` is set, all ranks
// share this work. Otherwise each rank has separate work.
double rate_of_all(Communicator& ranks, double work, double seconds, bool together) {
  double rate = 0;
  for (const double s : gather_one(ranks, seconds)) rate += work / s;
  return together ? rate / ranks.size() : rate;
}

// Three cells: a causal sequence, the sequence with a quarter of the key heads, and the sequence with a
// window of 1/32 of its length.
std::vector<AttentionCell> default_cells(const Settings& settings) {
  const bool on_cpu = settings.on_cpu(), quick = settings.is_quick();
  const std::int64_t large = size_of(settings.dtype) == 2 ? 131072 : 32768,
                     sequence = on_cpu ? (quick ? 256 : 1024) : (quick ? 16384 : large),
                     length = sequence - sequence % (2 * settings.ranks->size()), d = on_cpu ? 64 : 128;
  AttentionCell c{.H = 8, .Hk = 8, .L = length, .T = length, .d = d, .dv = d, .causal = true};
  AttentionCell grouped = c, window = c;
  grouped.Hk = 2;
  window.window = sequence / 32;
  return {c, grouped, window};
}

void report_ring(const AttentionCell& c, Report& report) {
  const Settings& settings = report.settings;
  const int n = settings.ranks->size();
  // The name, such as "ring_attention causal window 4096".
  const std::string name = "ring_attention" + c.name().substr(std::string("flash_attn").size());
  if (!report.selects(name)) return;
  ring_positions(0, n, c.L);  // throws if the ranks cannot split the sequence
  const RankRuns counts = settings.is_quick() ? RankRuns{1, 3, 1} : RankRuns{2, 5, 4};
  for (const Pass pass : {Pass::forward, Pass::backward, Pass::both}) {
    const double flops =
        (pass != Pass::backward ? c.flops(false) : 0) + (pass != Pass::forward ? c.flops(true) : 0);
    double alone = 0;
    for (const bool together : {false, true}) {
      Program program = attention_program(c, pass, 1, settings, together ? n : 1);
      const double seconds = seconds_of_step(*settings.ranks, counts, [&] {
        program.run();
        return program.fetch_later({});
      });
      const double rate = rate_of_all(*settings.ranks, flops, seconds, together);
      Row row = report.row(together ? name : c.name(), c.shape(), name_of(pass), 1);
      row.time(seconds).at(rate * 1e-12, "TFLOP/s");
      if (together)
        row.part(rate / alone, all_alone);
      else
        alone = rate;
      report.add(row);
    }
  }
}

struct StepWay {
  const char* name;
  bool together, divides_update, divides_tokens, sums_early = false;
};
constexpr StepWay step_ways[] = {{"step, separate ranks", false, false, false},
                                 {"step, whole update", true, false, false},
                                 {"step, divided update", true, true, false},
                                 {"step, early sums", true, true, false, true},
                                 {"step, divided sequences", true, true, true}};

// Returns why the ranks cannot split the sequences of a model, or "" if they can.
std::string mistake_in_dividing(const nn::ModelConfig& config, int ranks) {
  if (ranks > most_ring_ranks) return "at most " + std::to_string(most_ring_ranks) + " ranks are supported";
  if (ranks > 1 && config.context % (2 * ranks) != 0)
    return "--context " + std::to_string(config.context) + " is not a multiple of " +
           std::to_string(2 * ranks);
  if (ranks > 1 && config.dropout > 0) return "--dropout is not supported";
  return "";
}

void report_steps(Report& report) {
  const Settings& settings = report.settings;
  const nn::ModelConfig& config = *settings.train.model;
  const std::shared_ptr<Communicator>& ranks = settings.ranks;
  const int n = ranks->size();
  nn::Params params(0, f32, settings.device);
  const nn::Model model(params, config);
  double alone = 0;  // rate of all separate ranks together
  for (const StepWay& way : step_ways) {
    if (const std::string mistake = mistake_in_dividing(config, n); way.divides_tokens && !mistake.empty()) {
      std::printf("skipped step with divided sequences: %s\n", mistake.c_str());
      continue;
    }
    const optim::AdamW optimizer(params.all(), {.ranks = way.divides_update ? ranks : nullptr});
    train::ProgramOptions options{.batch = settings.train.batch,
                                  .threads = 1,
                                  .precision = settings.precision(),
                                  .accumulate = way.together && !way.divides_tokens ? n : 1,
                                  .context_parallel = way.divides_tokens,
                                  .hoist_collectives = way.sums_early,
                                  .recompute = settings.train.recompute,
                                  .memory_budget = settings.train.budget};
    if (way.together) options.ranks = ranks;
    train::TrainingProgram training(model, optimizer, options);
    const TrainBatch batch(options.batch * options.accumulate, config);
    const RankRuns counts = settings.is_quick() ? RankRuns{1, 3, 1} : RankRuns{3, 7, 25};
    const double seconds = seconds_of_step(
        *ranks, counts, [&] { return training.start(batch.tokens, batch.targets, bench_learning_rate); });
    training.gather_weights();
    const double rate = rate_of_all(*ranks, static_cast<double>(batch.tokens.size()), seconds, way.together);
    Row row = report.row(way.name, joined({options.batch, config.context}, "x"), describe(n), 1);
    row.time(seconds).at(rate, "tokens/s");
    if (way.together)
      row.part(rate / alone, all_alone);
    else
      alone = rate;
    report.add(row);
  }
}

}  // namespace

void run_ranks(Report& report) {
  const Settings& settings = report.settings;
  if (settings.train.model) return report_steps(report);
  const std::vector<AttentionCell>& cells = settings.attention.cells;
  const bool shapes_given = !settings.shapes.empty() || !cells.empty();
  for (const Exchange& e : exchanges) {
    if (!report.selects(e.name)) continue;
    for (const Sizes& shape : settings.shapes) report_exchange(e, joined(shape), shape, report);
    if (shapes_given) continue;
    for (std::int64_t size :
         {std::int64_t{2048}, std::int64_t{1} << 19, std::int64_t{7087872}, std::int64_t{1} << 27})
      report_exchange(e, std::to_string(size), {size}, report);
    report_exchange(e, "GPT-2 124M", gpt2_gradients(), report);
  }
  if (!shapes_given || !cells.empty())
    for (const AttentionCell& c : cells.empty() ? default_cells(settings) : cells) report_ring(c, report);
}

}  // namespace tg::bench
