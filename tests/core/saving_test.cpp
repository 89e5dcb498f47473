// Tests the remaining time of a process after a request to end, with and without a save in progress.
#include "core/run/saving.h"

#include <gtest/gtest.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace {

const timespec* shown = nullptr;  // monotonic time; null: the system's clock

}  // namespace

// This function replaces the C library's function, also for calls from the library under test.
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (shown && clock == CLOCK_MONOTONIC) return *now = *shown, 0;
  return static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
}

namespace tg {
namespace {

constexpr std::int64_t asked = 1'000'000;
constexpr EndTimes times{.grace = 8'000, .save_grace = 120'000};

std::int64_t left(std::int64_t after, std::uint32_t saving, std::int64_t saved_after) {
  return time_to_end(asked + after, asked, times, saving, saved_after == 0 ? 0 : asked + saved_after);
}

TEST(TimeToEnd, IsGraceIfNotSaving) {
  EXPECT_EQ(left(0, 0, 0), 8'000);
  EXPECT_EQ(left(7'999, 0, 0), 1);
  EXPECT_EQ(left(8'000, 0, 0), 0);
  EXPECT_EQ(left(8'000, 0, -9'000), 0);  // a save that has already ended
}

TEST(TimeToEnd, DuringSaveIsSaveGrace) {
  EXPECT_GT(left(8'000, 1, 0), 0);
  EXPECT_GT(left(119'999, 1, 0), 0);
  EXPECT_EQ(left(119'999, 1, 0), 1);
  EXPECT_EQ(left(120'000, 1, 119'000), 0);  // the previous save does not count
}

TEST(TimeToEnd, AfterSaveLeavesTimeToReport) {
  EXPECT_GT(left(20'000 + end_after_save_ms - 1, 0, 20'000), 0);
  EXPECT_EQ(left(20'000 + end_after_save_ms, 0, 20'000), 0);
  EXPECT_EQ(left(7'999, 0, 1), 1);
  EXPECT_EQ(left(8'000, 0, 1), 0);
}

TEST(MonotonicMs, CountsWholeMilliseconds) {
  const auto at = [](time_t seconds, long nanoseconds) {
    const timespec now{seconds, nanoseconds};
    shown = &now;
    const std::int64_t ms = monotonic_ms();
    shown = nullptr;
    return ms;
  };
  EXPECT_EQ(at(0, 0), 0);
  EXPECT_EQ(at(0, 999'999), 0);
  EXPECT_EQ(at(0, 1'000'000), 1);
  EXPECT_EQ(at(7, 999'999'999), 7'999);
  EXPECT_EQ(at(8, 0), 8'000);
  EXPECT_EQ(at(100'000'000, 5'000'000), 100'000'000'005);
}

TEST(SaveScope, CountsInOwnState) {
  const EndState& own = own_end_state();
  {
    const SaveScope computes(SaveScope::Stage::computing);
    const SaveScope ignored(SaveScope::Stage::writing, false);
    EXPECT_EQ(own.saving, 1u);
    EXPECT_EQ(own.writing, 0u);
    const SaveScope writes(SaveScope::Stage::writing);
    EXPECT_EQ(own.saving, 2u);
    EXPECT_EQ(own.writing, 1u);
  }
  EXPECT_EQ(own.saving, 0u);
  EXPECT_EQ(own.writing, 0u);
  EXPECT_GT(own.saved, 0);
}

}  // namespace
}  // namespace tg
