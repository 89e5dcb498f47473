// The time of a process that was asked to end, with and without a save.
#include <gtest/gtest.h>

#include "core/run/saving.h"

namespace tg {
namespace {

constexpr std::int64_t asked = 1'000'000;
constexpr EndTimes times{.grace = 8'000, .save_grace = 120'000};

std::int64_t left(std::int64_t after, std::uint32_t saving, std::int64_t saved_after) {
  return time_to_end(asked + after, asked, times, saving, saved_after == 0 ? 0 : asked + saved_after);
}

TEST(TimeToEnd, WithoutSaveIsGrace) {
  EXPECT_EQ(left(0, 0, 0), 8'000);
  EXPECT_EQ(left(7'999, 0, 0), 1);
  EXPECT_EQ(left(8'000, 0, 0), 0);
  EXPECT_EQ(left(8'000, 0, -9'000), 0);  // an earlier save
}

TEST(TimeToEnd, DuringSaveIsSaveGrace) {
  EXPECT_GT(left(8'000, 1, 0), 0);
  EXPECT_GT(left(119'999, 1, 0), 0);
  EXPECT_EQ(left(119'999, 1, 0), 1);
  EXPECT_EQ(left(120'000, 1, 119'000), 0);  // the save before this one does not count
}

TEST(TimeToEnd, AfterSaveLeavesTimeToReport) {
  EXPECT_GT(left(20'000 + end_after_save_ms - 1, 0, 20'000), 0);
  EXPECT_EQ(left(20'000 + end_after_save_ms, 0, 20'000), 0);
  EXPECT_EQ(left(7'999, 0, 1), 1);
  EXPECT_EQ(left(8'000, 0, 1), 0);
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
