// bench ranks: what it takes to exchange data between the ranks that `launch` started, for each op on tensors
// of several sizes and on the gradients of GPT-2 124M as one list; then ring attention. The rate is NCCL's
// "bus bandwidth": the bytes that the fastest algorithm has to send from each rank, in the time that it took
// here.
#include <algorithm>
#include <numeric>

#include <tilegrad/ops/ranks.h>
#include "tools/bench/modes.h"

namespace tg::bench {

namespace {

using Sizes = std::vector<std::int64_t>;  // elements of each tensor

// Of the parameters of GPT-2 124M: 12 blocks of width 768, and the embeddings.
Sizes gpt2_gradients() {
  constexpr std::int64_t w = 768;
  Sizes all;
  for (int block = 0; block < 12; ++block)
    all.insert(all.end(), {w, w, w * 3 * w, 3 * w, w * w, w, w, w, w * 4 * w, 4 * w, 4 * w * w, w});
  all.insert(all.end(), {50257 * w, 1024 * w, w, w});
  return all;
}

struct Measured {
  const char* name;
  TensorList (*call)(const TensorList&, int ranks);
  double (*sent)(double bytes, double ranks);  // by the fastest algorithm, of an input of so many bytes
};
const Measured measured[] = {
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

// The same number of runs on all ranks, which wait for each other: not as many as fit in some time.
double median_seconds(Program& program, const Settings& settings) {
  std::vector<double> runs;
  for (int i = 0; i < 15; ++i) {
    const double start = now();
    if (settings.device.kind == Device::cpu_kind) {
      program.run();
      runs.push_back(now() - start);
    } else {
      const std::vector<double> steps = program.profile();
      runs.push_back(std::accumulate(steps.begin(), steps.end(), 0.));
    }
  }
  std::nth_element(runs.begin(), runs.begin() + 7, runs.end());
  return runs[7];
}

void measure(const Measured& m, const std::string& shape, const Sizes& sizes, const Settings& settings,
             Report& report) {
  const int n = settings.ranks ? settings.ranks->size() : 1;
  Graph g;
  TensorList xs;
  double bytes = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::int64_t size = (sizes[i] + n - 1) / n * n;  // which all ops can divide
    xs.push_back(g.param(Parameter("x" + std::to_string(i), Array({size}, settings.dtype), settings.device)));
    bytes += static_cast<double>(size) * static_cast<double>(size_of(settings.dtype));
  }
  Program program =
      compile(g, m.call(xs, n), {.device = settings.device, .threads = 1, .ranks = settings.ranks});
  Row row{m.name, shape, settings.dtype_name(), std::to_string(n) + " ranks", 1};
  const double seconds = median_seconds(program, settings);
  row.ms = seconds * 1e3;
  row.rate = m.sent(bytes, n) / seconds * 1e-9, row.unit = "GB/s";
  report.add(row);
}

}  // namespace

void run_ranks(const Settings& settings, const Machine&, Report& report) {
  if (settings.train.model) return report_rank_steps(settings, report);
  const bool shapes_given = !settings.shapes.empty() || !settings.attention.cells.empty();
  for (const Measured& m : measured) {
    if (!report.selects(m.name)) continue;
    for (const Sizes& shape : settings.shapes) measure(m, joined(shape), shape, settings, report);
    if (shapes_given) continue;
    for (std::int64_t size :
         {std::int64_t{2048}, std::int64_t{1} << 19, std::int64_t{7087872}, std::int64_t{1} << 27})
      measure(m, std::to_string(size), {size}, settings, report);
    measure(m, "GPT-2 124M", gpt2_gradients(), settings, report);
  }
  if (!shapes_given || !settings.attention.cells.empty()) report_rank_attention(settings, report);
}

}  // namespace tg::bench
