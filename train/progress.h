// The progress display of training: one line rewritten in place on a terminal; elsewhere a plain line from
// time to time.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

namespace tg::train {

struct ProgressState {
  std::int64_t step = 0, steps = 0;
  double loss = 0, lr = 0;
  double val_loss = std::numeric_limits<double>::quiet_NaN();  // the latest; shown once it is a number
  double tokens_per_s = 0, seconds_left = 0;
};

// "step  120/2000 [#---------]   6% | loss 2.4817 | val 2.5102 | lr 9.8e-04 | 81.3k tok/s | ETA 00:14"
std::string progress_line(const ProgressState& state);

// "81.3k", "950", "1.20M": a rate or a count in at most five characters.
std::string short_count(double x);
// "00:14", "1:02:03".
std::string short_time(double seconds);

class Progress {
 public:
  // `plain_every`: seconds between the lines written to something that is not a terminal. Error without a
  // file.
  Progress(std::FILE* out, std::int64_t first_step, std::int64_t steps, std::int64_t tokens_per_step,
           double plain_every = 5.0);
  ~Progress();  // moves the cursor to a new line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // After step number `step` (counted from 1) is done. Cheap: draws at most ten times a second on a terminal.
  // The line of the last step waits for its validation, if there is one.
  void update(std::int64_t step, double loss, double lr);
  // After a validation; the time since the last update does not count towards the rate.
  void validation(double loss);
  // Prints a whole line above the live one.
  void note(const std::string& line);

  // Tokens per second over about the last second of steps; 0 before the first step.
  double tokens_per_s() const { return state_.tokens_per_s; }

 private:
  using Clock = std::chrono::steady_clock;
  void draw();

  std::FILE* out_;
  bool terminal_, drawn_ = false, measured_ = false, pending_ = false;
  double period_;  // seconds between lines
  std::int64_t tokens_per_step_;
  ProgressState state_;
  Clock::time_point mark_, shown_;
  std::int64_t mark_step_;
};

}  // namespace tg::train
