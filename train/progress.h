// The progress display of training. On a terminal, it updates one line in place. Otherwise it writes a plain
// line from time to time.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

namespace tg::train {

// The values of a progress line.
struct ProgressState {
  std::int64_t step = 0, steps = 0;                            // steps done, and their total number
  double loss = 0, lr = 0;                                     // of the latest step; nats per token
  double val_loss = std::numeric_limits<double>::quiet_NaN();  // of the latest validation; NaN hides it
  double tokens_per_s = 0, seconds_left = 0;                   // rate, and estimated remaining time
};

// Returns a line such as:
//     step  120/2000 [#---------]   6% | loss 2.4817 | val 2.5102 | lr 9.8e-04 | 81.3k tok/s | ETA 00:14
std::string progress_line(const ProgressState& state);

// Returns a rate or a count in at most five characters: "81.3k", "950", "1.20M".
std::string short_count(double x);
// Returns a duration: "00:14", "1:02:03".
std::string short_time(double seconds);

// Displays the progress of a training run.
class Progress {
 public:
  // Writes to `out`. `first_step` is the number of steps done before. If `out` is not a terminal, writes one
  // line every `plain_every` seconds. Throws Error if `out` is null.
  Progress(std::FILE* out, std::int64_t first_step, std::int64_t steps, std::int64_t tokens_per_step,
           double plain_every = 5.0);
  // Ends the progress line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Call it after step `step`, counted from 1. It is cheap: it redraws a terminal at most ten times per
  // second. The line of the last step is delayed until its validation, if there is one.
  void update(std::int64_t step, double loss, double lr);
  // Call it after a validation. The time since the last update() does not count for the token rate.
  void validation(double loss);
  // Prints a line above the progress line.
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
