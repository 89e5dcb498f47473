// Tests the progress line with a simulated clock. Checks when the line is drawn, and its rate and remaining
// time.
#include <tilegrad/train/progress.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <functional>

namespace {
double clock_seconds = -1;  // negative: the system's clock
}

// std::chrono::steady_clock calls this function of the C library. The test replaces it.
extern "C" int clock_gettime(clockid_t id, timespec* now) noexcept {
  if (clock_seconds < 0 || id != CLOCK_MONOTONIC)
    return static_cast<int>(::syscall(SYS_clock_gettime, id, now));
  now->tv_sec = static_cast<time_t>(clock_seconds);
  now->tv_nsec = std::lround((clock_seconds - std::floor(clock_seconds)) * 1e9);
  return 0;
}

namespace {

using namespace tg;

struct FakeClock {
  FakeClock() { clock_seconds = 1000; }
  ~FakeClock() { clock_seconds = -1; }
};

// Returns the lines that a run writes to a file.
std::string written(double period, const std::function<void(train::Progress&)>& run, std::int64_t first = 0,
                    std::int64_t steps = 100) {
  const FakeClock clock;
  std::FILE* file = std::tmpfile();
  {
    train::Progress progress(file, first, steps, 64, period);
    run(progress);
  }
  std::string text(1 << 14, '\0');  // reads the file directly, so the stream must have been flushed
  const ssize_t size = ::pread(::fileno(file), text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(size));
  std::fclose(file);
  return text;
}

std::string line(int step, const std::string& bar, int percent, const std::string& rest) {
  return "step " +
         std::string(step < 10    ? "  "
                     : step < 100 ? " "
                                  : "") +
         std::to_string(step) + "/100 [" + bar + "] " +
         std::string(percent < 10    ? "  "
                     : percent < 100 ? " "
                                     : "") +
         std::to_string(percent) + "% | loss " + rest + "\n";
}

TEST(ProgressClock, LinesAreWrittenOncePerPeriod) {
  const auto run = [](train::Progress& p) {
    for (int step = 1; step <= 60; ++step) clock_seconds += 0.25, p.update(step, step, 0.5);
  };
  // The run processes 64 tokens every quarter of a second. The first line is written after the interval.
  const std::string rest = " | lr 5.0e-01 | 256 tok/s | ETA ";
  EXPECT_EQ(written(5, run), line(20, "##--------", 20, "20.0000" + rest + "00:20") +
                                 line(40, "####------", 40, "40.0000" + rest + "00:15") +
                                 line(60, "######----", 60, "60.0000" + rest + "00:10"));
  EXPECT_EQ(written(1e9, run), "");
  EXPECT_EQ(written(7.25, run), line(29, "##--------", 28, "29.0000" + rest + "00:18") +
                                    line(58, "#####-----", 57, "58.0000" + rest + "00:11"));
}

// The rate covers at least the last second. In the first second, it covers all of the time so far.
TEST(ProgressClock, RateCoversTheLastSecond) {
  const double seconds[] = {0.1, 0.3, 0.5, 0.6, 0.9, 0.2, 2.0, 0.4, 0.7, 4.0};
  const double rates[] = {640, 320, 213.3333, 170.6667, 170.6667, 116.3636, 32, 32, 116.3636, 16};
  const FakeClock clock;
  std::FILE* file = std::tmpfile();
  {
    train::Progress progress(file, 10, 100, 64, 1e9);
    EXPECT_EQ(progress.tokens_per_s(), 0);
    for (int i = 0; i < 10; ++i) {
      clock_seconds += seconds[i];
      progress.update(11 + i, 2, 0.5);
      EXPECT_NEAR(progress.tokens_per_s(), rates[i], 1e-3) << i;
    }
    // The time of a validation is not counted.
    clock_seconds += 30, progress.validation(3);
    clock_seconds += 0.5, progress.update(21, 2, 0.5);
    EXPECT_NEAR(progress.tokens_per_s(), 16, 1e-9);
    clock_seconds += 0.5, progress.update(22, 2, 0.5);
    EXPECT_NEAR(progress.tokens_per_s(), 128, 1e-9);
    // Tests a resumed run and a clock that does not advance. Neither affects the rate.
    progress.update(24, 2, 0.5);
    clock_seconds += 5, progress.update(22, 2, 0.5);
    EXPECT_NEAR(progress.tokens_per_s(), 128, 1e-9);
  }
  std::fclose(file);
}

TEST(ProgressClock, ValidationBeforeTheFirstStepCountsNoSteps) {
  const FakeClock clock;
  std::FILE* file = std::tmpfile();
  {
    train::Progress progress(file, 10, 100, 64, 1e9);
    progress.validation(3);
    clock_seconds += 1, progress.update(11, 2, 0.5);
    EXPECT_EQ(progress.tokens_per_s(), 64);
  }
  std::fclose(file);
}

TEST(ProgressClock, PlainPeriodIsFiveSeconds) {
  const FakeClock clock;
  std::FILE* file = std::tmpfile();
  train::Progress progress(file, 0, 100, 64);
  clock_seconds += 4.99, progress.update(1, 2, 0.5);
  const auto size = [&] { return ::lseek(::fileno(file), 0, SEEK_END); };
  EXPECT_EQ(size(), 0);
  clock_seconds += 0.01, progress.update(2, 2, 0.5);
  const off_t before = size();
  EXPECT_GT(before, 0);
  progress.note("a note");
  EXPECT_EQ(size(), before + 7);
}

// The last line waits for a validation or a note and is drawn only once.
TEST(ProgressClock, LastLineIsDrawnOnce) {
  const std::string last = line(100, "##########", 100, "2.0000 | lr 5.0e-01 | 6.40k tok/s | ETA 00:00"),
                    validated = line(100, "##########", 100,
                                     "2.0000 | val 3.0000 | lr 5.0e-01 | 6.40k tok/s | ETA 00:00");
  const auto update = [](train::Progress& p) { clock_seconds += 1, p.update(100, 2, 0.5); };
  EXPECT_EQ(written(1e9, [&](auto& p) { update(p); }), last);
  EXPECT_EQ(written(1e9, [&](auto& p) { update(p), p.validation(3); }), validated);
  EXPECT_EQ(written(1e9, [&](auto& p) { update(p), p.note("a note"), p.note("another"); }),
            last + "a note\nanother\n");
  EXPECT_EQ(written(1e9, [&](auto& p) { p.validation(3), update(p), p.note("a note"), p.validation(3); }),
            validated + "a note\n" + validated);
  EXPECT_EQ(written(1e9, [](auto& p) { p.note("a note"); }), "a note\n");
  EXPECT_EQ(written(1e9, [](auto& p) { p.validation(3), p.note("a note"); }), "a note\n");
}

TEST(ProgressClock, RunWithoutStepsHasNoRateAndRemainingTime) {
  EXPECT_EQ(written(0, [](auto& p) { p.update(0, NAN, 1e-9); }),
            line(0, "----------", 0, "nan | lr 1.0e-09 | 0 tok/s | ETA --:--"));
  EXPECT_EQ(written(
                0, [](auto& p) { clock_seconds += 2, p.update(7, 1, 0); }, 7),
            line(7, "----------", 7, "1.0000 | lr 0.0e+00 | 0 tok/s | ETA --:--"));
}

// Returns the bytes that are sent to a terminal of this width.
std::string on_terminal(int columns, const std::function<void(train::Progress&)>& run) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  EXPECT_EQ(::grantpt(terminal), 0);
  EXPECT_EQ(::unlockpt(terminal), 0);
  std::FILE* file = std::fopen(::ptsname(terminal), "w");
  winsize size{};
  size.ws_row = 24, size.ws_col = static_cast<unsigned short>(columns);
  EXPECT_EQ(::ioctl(::fileno(file), TIOCSWINSZ, &size), 0);
  {
    const FakeClock clock;
    train::Progress progress(file, 0, 100, 64);
    run(progress);
  }
  std::fputs("END", file), std::fclose(file);
  std::string got;
  char buffer[4096];
  for (pollfd ready{terminal, POLLIN, 0}; !got.ends_with("END") && ::poll(&ready, 1, 5000) == 1;) {
    const ssize_t n = ::read(terminal, buffer, sizeof buffer);
    if (n <= 0) break;
    got.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(terminal);
  return got;
}

TEST(ProgressClock, TerminalIsRewrittenTenTimesASecondWithinItsWidth) {
  const auto twice = [](auto& p) {
    clock_seconds += 0.099, p.update(1, 2, 0.5);
    clock_seconds += 0.002, p.update(2, 2, 0.5);
    clock_seconds += 0.099, p.update(3, 2, 0.5);
    clock_seconds += 0.002, p.update(4, 2, 0.5);
  };
  EXPECT_EQ(on_terminal(12, twice), "\rstep   2/10\x1b[K\rstep   4/10\x1b[K\r\nEND");
  const auto once = [](auto& p) { clock_seconds += 1, p.update(50, 2, 0.5); };
  const std::string whole =
      "\rstep  50/100 [#####-----]  50% | loss 2.0000 | lr 5.0e-01 | 3.20k tok/s | ETA 00:01\x1b[K\r\nEND";
  EXPECT_EQ(on_terminal(3, once), "\rst\x1b[K\r\nEND");
  EXPECT_EQ(on_terminal(2, once), "\rs\x1b[K\r\nEND");
  for (const int columns : {0, 1, 200}) EXPECT_EQ(on_terminal(columns, once), whole) << columns;
  // The last step on a terminal is drawn immediately, and again after its validation.
  const auto last = [](auto& p) { p.update(100, 2, 0.5), p.validation(3), p.note("x"); };
  EXPECT_EQ(on_terminal(9, last), "\rstep 100\x1b[K\rstep 100\x1b[K\r\x1b[Kx\r\n\rstep 100\x1b[K\r\nEND");
  EXPECT_EQ(on_terminal(9, [](auto& p) { p.note("x"); }), "x\r\nEND");
}

// Tests values near each limit. At these limits, the unit or the number of digits changes.
TEST(ProgressText, NumbersAtTheirLimits) {
  const std::pair<double, const char*> counts[] = {
      {0.4, "0"},         {999.4, "999"},     {999.6, "1.00k"},  {9994, "9.99k"},   {9995.1, "10.0k"},
      {99949, "99.9k"},   {99951, "100k"},    {999499, "999k"},  {999501, "1.00M"}, {9.994e6, "9.99M"},
      {9.996e6, "10.0M"}, {99.94e6, "99.9M"}, {99.96e6, "100M"}, {999.4e6, "999M"}, {999.6e6, "1.00G"},
      {9.994e9, "9.99G"}, {9.996e9, "10.0G"}, {1e11, "100G"},    {1e13, "10000G"},  {-1, "-"},
      {INFINITY, "-"}};
  for (const auto& [x, text] : counts) EXPECT_EQ(train::short_count(x), text) << x;
  const std::pair<double, const char*> times[] = {
      {0.4, "00:00"},        {0.6, "00:01"},      {59.4, "00:59"},     {60, "01:00"},
      {3599.4, "59:59"},     {3599.6, "1:00:00"}, {86399, "23:59:59"}, {360000, "100:00:00"},
      {1e9, "277777:46:40"}, {1.1e9, "--:--"},    {-0.1, "--:--"},     {NAN, "--:--"}};
  for (const auto& [s, text] : times) EXPECT_EQ(train::short_time(s), text) << s;
  const auto bar = [](std::int64_t step, std::int64_t steps) {
    const std::string text = train::progress_line({.step = step, .steps = steps});
    return text.substr(0, text.find(" | loss"));
  };
  EXPECT_EQ(bar(0, 7), "step 0/7 [----------]   0%");
  EXPECT_EQ(bar(1, 8), "step 1/8 [#---------]  12%");
  EXPECT_EQ(bar(7, 8), "step 7/8 [########--]  87%");
  EXPECT_EQ(bar(12, 8), "step 12/8 [##########] 100%");
  EXPECT_EQ(bar(-2, 8), "step -2/8 [----------]   0%");
  EXPECT_EQ(bar(0, 0), "step 0/0 [##########] 100%");
  EXPECT_EQ(bar(1, 1), "step 1/1 [##########] 100%");
}

}  // namespace
