// Replays a trace of requests on an engine, by the clock, and measures what those who sent them see.
#pragma once

#include <tilegrad/nn/generation/engine.h>
#include "tools/bench/cache_history.h"
#include "tools/bench/trace.h"

namespace tg::bench {

struct Replay {
  double seconds = 0;   // until the last token
  double stepping = 0;  // of them in steps: the others passed without a text
  double host = 0;      // of those in steps not in the model's runs
  std::int64_t steps = 0, tokens = 0;
  double texts = 0;  // that have a place in the cache, in a step: the mean
  // Share of the cache that holds tokens of a text, in a step: the mean, of those in which texts had to wait
  // (NaN: none), and the most.
  double useful = 0, useful_full = 0, most_useful = 0;
  std::int64_t preemptions = 0, found = 0;
  std::vector<double> first, between;  // seconds to a text's first token, and from each to the next; sorted
  std::vector<std::vector<std::int32_t>> texts_written;  // of each request
};

// Each request is added when its time has come, and its text written greedily. The clock stands still while
// this function looks at the pages. `history`, if there is one, gets every step.
Replay replay(nn::Engine& engine, const std::vector<Arrival>& trace,
              const std::vector<std::vector<std::int32_t>>& prompts, CacheHistory* history);

// Of sorted numbers the least that p of them do not exceed; NaN if there are none.
double percentile(const std::vector<double>& sorted, double p);

}  // namespace tg::bench
