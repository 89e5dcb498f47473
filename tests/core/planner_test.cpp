// The memory planner: plans are sound, reuse what is dead, and the checker sees an unsound one.
#include "core/compile/planner.h"

#include <gtest/gtest.h>

#include <random>

namespace {

using namespace tg;

std::vector<Lifetime> random_lives(int count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Lifetime> lives;
  int step = 0;
  for (int i = 0; i < count; ++i) {
    step += static_cast<int>(random() % 2);
    lives.push_back({random() % 5000, step, step + static_cast<int>(random() % 30)});
  }
  return lives;
}

TEST(Planner, PlansOfRandomLifetimesAreSound) {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const auto lives = random_lives(200, seed);
    const Placement p = plan_memory(lives);
    EXPECT_TRUE(plan_is_sound(lives, p)) << seed;
    EXPECT_GE(p.peak, p.alive);
  }
}

TEST(Planner, WithoutReuseNothingOverlaps) {
  const auto lives = random_lives(100, 1);
  const Placement p = plan_memory(lives, false);
  std::size_t total = 0;
  for (const Lifetime& l : lives) total += (l.bytes + 63) / 64 * 64;
  EXPECT_EQ(p.peak, total);
}

TEST(Planner, AChainNeedsTwoBuffers) {
  std::vector<Lifetime> chain;
  for (int i = 0; i < 1000; ++i) chain.push_back({4096, i, i + 1});
  EXPECT_EQ(plan_memory(chain).peak, 2u * 4096);
}

TEST(Planner, NeighboursThatDieMerge) {
  // Two halves die, then one whole fits in their place.
  const std::vector<Lifetime> lives{{64, 0, 1}, {64, 0, 1}, {128, 2, 3}};
  EXPECT_EQ(plan_memory(lives).peak, 128u);
}

TEST(Planner, TheEndOfTheArenaGrowsInsteadOfStartingAnew) {
  const std::vector<Lifetime> lives{{64, 0, 5}, {64, 0, 1}, {256, 2, 3}};
  EXPECT_EQ(plan_memory(lives).peak, 64u + 256);
}

TEST(Planner, EmptyBuffersTakeNoPlace) {
  const std::vector<Lifetime> lives{{0, 0, 9}, {64, 0, 1}, {0, 1, 1}};
  const Placement p = plan_memory(lives);
  EXPECT_EQ(p.peak, 64u);
  EXPECT_TRUE(plan_is_sound(lives, p));
}

TEST(Planner, TheCheckerSeesOverlap) {
  const auto lives = random_lives(200, 3);
  const Placement good = plan_memory(lives);
  int caught = 0, tried = 0;
  for (std::size_t i = 1; i < lives.size(); ++i) {
    std::size_t j = i - 1;  // an older buffer still alive when i starts
    if (lives[j].bytes == 0 || lives[i].bytes == 0 || lives[j].last < lives[i].first) continue;
    Placement bad = good;
    bad.offset[i] = bad.offset[j];
    ++tried;
    caught += !plan_is_sound(lives, bad);
  }
  EXPECT_GT(tried, 20);
  EXPECT_EQ(caught, tried);
  Placement outside = good;
  outside.peak -= 64;
  EXPECT_FALSE(plan_is_sound(lives, outside));
}

}  // namespace
