// Progress line on standard error for a known amount of work: "37 % of 1,204 windows, ETA 00:12". Prints
// nothing if standard error is not a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include <tilegrad/train/progress.h>
#include "core/os/streams.h"
#include "tools/train_report.h"

namespace tg {

// Returns the line after `seconds` if `done` of `all` units are complete.
inline std::string share_line(std::int64_t done, std::int64_t all, const std::string& unit, double seconds) {
  const double share = all > 0 ? static_cast<double>(done) / static_cast<double>(all) : 1;
  const double left = done > 0 ? seconds * (1 - share) / share : -1;
  return std::to_string(static_cast<int>(100 * share)) + " % of " + grouped(all) + " " + unit + ", ETA " +
         train::short_time(left);
}

class ShareProgress {
 public:
  ShareProgress(std::int64_t all, std::string unit) : all_(all), unit_(std::move(unit)) {}
  ~ShareProgress() {
    if (is_drawn_) std::fprintf(stderr, "\r\x1b[K");
  }
  ShareProgress(const ShareProgress&) = delete;

  void update(std::int64_t done) {
    const Clock::time_point now = Clock::now();
    if (!is_terminal_ || now - shown_ < std::chrono::milliseconds(100)) return;
    shown_ = now, is_drawn_ = true;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    std::fprintf(stderr, "\r%s\x1b[K", share_line(done, all_, unit_, seconds).c_str());
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::int64_t all_;
  std::string unit_;
  bool is_terminal_ = os::is_terminal(stderr), is_drawn_ = false;
  Clock::time_point start_ = Clock::now(), shown_ = start_;
};

}  // namespace tg
