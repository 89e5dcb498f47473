#include "tools/bench/cold_runs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <tilegrad/ops/ops.h>

namespace tg::bench {

ColdRuns::ColdRuns(const Settings& settings)
    : seconds_(settings.seconds), bytes_(static_cast<double>(settings.copy_bytes)) {
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

int ColdRuns::calls(double bytes) const {
  return static_cast<int>(std::clamp(std::ceil(bytes_ / bytes), 2., 128.));
}

double ColdRuns::median_in_graph(Program& program, int calls, const Tensor& output) {
  const auto seconds_of = [&](int runs) {
    const double begin = now();
    for (int n = 0; n < runs; ++n) program.run();
    program.fetch_later({output}).wait();
    return (now() - begin) / runs;
  };
  seconds_of(2);  // what is prepared at the first run
  const int queued = static_cast<int>(std::clamp(0.01 / seconds_of(3), 2., 100.));
  std::vector<double> runs;
  for (const double end = now() + seconds_ / 2; runs.size() < 3 || now() < end;)
    runs.push_back(seconds_of(queued));
  const auto middle = runs.begin() + static_cast<std::ptrdiff_t>(runs.size() / 2);
  std::nth_element(runs.begin(), middle, runs.end());
  return *middle / calls;
}

}  // namespace tg::bench
