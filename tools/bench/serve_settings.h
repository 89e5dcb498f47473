// What the mode `serve` of bench is told by options of its own.
#pragma once

#include <string>

#include "tools/bench/trace.h"
#include "tools/cache_memory.h"

namespace tg::bench {

struct ServeSettings {
  RandomTrace random;           // the trace, unless there is a file of one
  std::string trace;            // the file
  CacheMemory cache;            // 0: of 16 contexts
  std::int64_t page_size = 16;  // tokens, of the cache in pages
  std::int64_t seats = 128;     // texts in a step, at most
  bool in_step = false;         // no step is started before the tokens of the one before are known
  std::string plot;             // also draw the pages over time into this file
};

}  // namespace tg::bench
