#include "tools/bench/cold_runs.h"

#include <algorithm>
#include <numeric>

#include <tilegrad/ops/ops.h>

namespace tg::bench {

ColdRuns::ColdRuns(const Settings& settings) : seconds_(settings.seconds) {
  Graph g;
  const auto numbers =
      static_cast<std::int64_t>(settings.copy_bytes / 2 / sizeof(float));  // read and written
  const Tensor x = g.input("flushed", {numbers});
  flush_ = compile(g, {x + 1}, options_of(settings, settings.threads));
  flush_->feed({x, Array(x.shape(), f32)});
}

double ColdRuns::one_run(Program& program) {
  flush_->run();
  const std::vector<double> steps = program.profile();
  return std::accumulate(steps.begin(), steps.end(), 0.);
}

double ColdRuns::median(Program& program) {
  for (const double end = now() + seconds_ / 10; now() < end;) one_run(program);
  std::vector<double> runs;
  for (const double end = now() + seconds_ / 2; runs.size() < 3 || now() < end;)
    runs.push_back(one_run(program));
  const auto middle = runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2);
  std::nth_element(runs.begin(), middle, runs.end());
  return *middle;
}

}  // namespace tg::bench
