// The progress line and its token rate.
#include <tilegrad/train/progress.h>

#include <algorithm>
#include <cmath>

#include <tilegrad/core/base/error.h>
#include "core/base/messages.h"
#include "core/os/streams.h"

namespace tg::train {
namespace {

double seconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

std::FILE* opened(std::FILE* file) {
  if (file == nullptr) throw Error("[progress] got no file to write to: was it opened?");
  return file;
}

}  // namespace

std::string short_count(double x) {
  if (!(x >= 0) || std::isinf(x)) return "-";
  const char* unit = "";
  if (x >= 999.5e6) {
    x /= 1e9, unit = "G";
  } else if (x >= 999.5e3) {
    x /= 1e6, unit = "M";
  } else if (x >= 999.5) {
    x /= 1e3, unit = "k";
  }
  const int decimals = *unit == '\0' || x >= 99.95 ? 0 : x >= 9.995 ? 1 : 2;
  return formatted("%.*f%s", decimals, x, unit);
}

std::string short_time(double s) {
  if (!(s >= 0) || s > 1e9) return "--:--";
  const auto n = static_cast<long long>(s + 0.5);
  if (n < 3600) return formatted("%02lld:%02lld", n / 60, n % 60);
  return formatted("%lld:%02lld:%02lld", n / 3600, n / 60 % 60, n % 60);
}

std::string progress_line(const ProgressState& s) {
  constexpr int width = 10;
  const double part = s.steps > 0 ? std::clamp(double(s.step) / double(s.steps), 0.0, 1.0) : 1.0;
  const int full = static_cast<int>(part * width);
  const int digits = static_cast<int>(std::to_string(s.steps).size());
  std::string line =
      formatted("step %*lld/%lld [", digits, static_cast<long long>(s.step), static_cast<long long>(s.steps));
  line += std::string(full, '#') + std::string(width - full, '-');
  line += formatted("] %3d%% | loss %.4f", static_cast<int>(part * 100), s.loss);
  if (!std::isnan(s.val_loss)) line += formatted(" | val %.4f", s.val_loss);
  line += formatted(" | lr %.1e", s.lr) + " | " + short_count(s.tokens_per_s) + " tok/s";
  return line + " | ETA " + short_time(s.seconds_left);
}

Progress::Progress(std::FILE* out, std::int64_t first_step, std::int64_t steps, std::int64_t tokens_per_step,
                   double plain_every)
    : out_(opened(out)),
      terminal_(os::is_terminal(out)),
      period_(terminal_ ? 0.1 : plain_every),
      tokens_per_step_(tokens_per_step),
      mark_(Clock::now()),
      shown_(mark_),
      mark_step_(first_step) {
  state_.step = first_step;
  state_.steps = steps;
}

Progress::~Progress() {
  if (pending_) draw();
  if (drawn_ && terminal_) std::fputc('\n', out_);
  std::fflush(out_);
}

void Progress::update(std::int64_t step, double loss, double lr) {
  const Clock::time_point now = Clock::now();
  state_.step = step;
  state_.loss = loss;
  state_.lr = lr;
  // The rate covers at least a second, so that it looks steady. During the first second, it covers the time
  // so far.
  const double elapsed = seconds(now - mark_);
  if (elapsed > 0 && step > mark_step_ && (elapsed >= 1 || !measured_)) {
    state_.tokens_per_s = (double(step) - double(mark_step_)) * double(tokens_per_step_) / elapsed;
    if (elapsed >= 1) mark_ = now, mark_step_ = step, measured_ = true;
  }
  const double left = (double(state_.steps) - double(step)) * double(tokens_per_step_);
  state_.seconds_left = state_.tokens_per_s > 0 ? left / state_.tokens_per_s : -1;
  const bool is_last = step == state_.steps;
  pending_ = is_last && !terminal_;  // on a terminal, the next line redraws it
  if (pending_ || (!is_last && seconds(now - shown_) < period_)) return;
  shown_ = now;
  draw();
}

void Progress::validation(double loss) {
  state_.val_loss = loss;
  if (state_.step == state_.steps) draw();
  mark_ = Clock::now();
  mark_step_ = state_.step;
}

void Progress::draw() {
  pending_ = false;
  std::string line = progress_line(state_);
  if (!terminal_) {
    std::fprintf(out_, "%s\n", line.c_str());
  } else {
    const int width = os::terminal_width(out_);  // a wrapped line could not be overwritten
    if (width > 1) line.resize(std::min<std::size_t>(line.size(), static_cast<std::size_t>(width) - 1));
    std::fprintf(out_, "\r%s\x1b[K", line.c_str());
    drawn_ = true;
  }
  std::fflush(out_);
}

void Progress::note(const std::string& line) {
  if (pending_) draw();
  std::fprintf(out_, "%s%s\n", drawn_ ? "\r\x1b[K" : "", line.c_str());
  if (drawn_) draw();
  std::fflush(out_);
}

}  // namespace tg::train
