// The rate at which threads read memory and do nothing else.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tools/bench/measure.h"

namespace tg::bench {

class Reading {
 public:
  // On `settings.threads` threads, of `settings.copy_bytes`: more than caches hold.
  explicit Reading(const Settings& settings);
  double gbytes();  // GB/s, of one pass over all of it

 private:
  std::size_t threads_, part_;         // bytes of a thread
  std::shared_ptr<std::byte> memory_;  // [threads, part]
  std::vector<std::int64_t> sinks_;    // what each thread has read, so that it must
};

}  // namespace tg::bench
