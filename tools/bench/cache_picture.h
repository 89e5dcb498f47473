// Caches over time as a picture, one next to the other: a column for each step, a row for each page, coloured
// by the text that has it.
#pragma once

#include <string>
#include <vector>

#include <tilegrad/io/plots/image.h>
#include "tools/bench/cache_history.h"

namespace tg::bench {

struct CachePanel {
  std::vector<std::string> lines;  // two, above it
  const CacheHistory* history;
};

// The panels have one scale of steps and one of rows, and may have different numbers of both.
plot::Image draw_caches(const std::string& title, const std::vector<CachePanel>& panels);

}  // namespace tg::bench
