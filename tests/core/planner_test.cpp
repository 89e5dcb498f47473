// Tests the memory planner. Plans must be valid and reuse the memory of dead buffers. The checker must detect
// invalid plans.
#include "core/compile/memory_plan.h"

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

// Computes the plan with a list of blocks of 64 bytes. It uses the smallest sufficient gap, and the first of
// equal gaps. If no gap is sufficient, it extends the arena, starting in the gap at the end.
Placement plain_plan(const std::vector<Lifetime>& lives) {
  Placement p;
  std::vector<int> last_use;  // for each block of the arena, the last step of the newest buffer
  for (const Lifetime& l : lives) {
    const std::size_t blocks = (l.bytes + 63) / 64;
    std::size_t best = last_use.size(), length = 0, alive = blocks;
    for (std::size_t at = 0; at < last_use.size();) {
      std::size_t end = at;
      while (end < last_use.size() && last_use[end] < l.first) ++end;
      if (blocks > 0 && end - at >= blocks && (length == 0 || end - at < length))
        best = at, length = end - at;
      if (length == 0 && end == last_use.size()) best = at;
      at = std::max(end, at + 1);
    }
    for (const int step : last_use) alive += step >= l.first;
    p.offset.push_back(blocks > 0 ? best * 64 : 0);
    p.alive = std::max(p.alive, alive * 64);
    last_use.resize(std::max(last_use.size(), blocks > 0 ? best + blocks : 0), -1);
    std::fill_n(last_use.begin() + static_cast<std::ptrdiff_t>(best), blocks, l.last);
  }
  p.peak = last_use.size() * 64;
  return p;
}

TEST(Planner, UsesTheSmallestGapThatFits) {
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    auto lives = random_lives(60, seed);
    for (Lifetime& l : lives)
      if (seed % 2 == 0) l.bytes %= 300;  // includes gaps of equal size and buffers without bytes
    const Placement got = plan_memory(lives), expected = plain_plan(lives);
    EXPECT_EQ(got.offset, expected.offset) << seed;
    EXPECT_EQ(got.peak, expected.peak) << seed;
    EXPECT_EQ(got.alive, expected.alive) << seed;
  }
}

// Checks all pairs of buffers in plans with one moved buffer.
TEST(Planner, TheCheckerAgreesWithAllPairsOfBuffers) {
  std::mt19937 random(5);
  int sound = 0, unsound = 0;
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    auto lives = random_lives(12, seed);
    for (Lifetime& l : lives)
      l.bytes = seed % 3 == 0 ? l.bytes % 200 : l.bytes % 4 * 64, l.last -= l.last % 3;
    for (Lifetime& l : lives) l.last = std::max(l.last, l.first);
    Placement p = plan_memory(lives);
    p.offset[random() % lives.size()] = random() % 8 * 64 + (random() % 8 == 0 ? 32 : 0);
    bool expected = true;
    for (std::size_t i = 0; i < lives.size(); ++i) {
      const std::size_t end = p.offset[i] + lives[i].bytes;
      if (lives[i].bytes == 0) continue;
      expected = expected && p.offset[i] % 64 == 0 && end <= p.peak;
      for (std::size_t j = 0; j < i; ++j)
        expected = expected &&
                   (lives[j].bytes == 0 || lives[j].last < lives[i].first || lives[i].last < lives[j].first ||
                    end <= p.offset[j] || p.offset[j] + lives[j].bytes <= p.offset[i]);
    }
    EXPECT_EQ(plan_is_sound(lives, p), expected) << seed;
    ++(expected ? sound : unsound);
  }
  EXPECT_GT(sound, 50);
  EXPECT_GT(unsound, 50);
}

TEST(Planner, NothingOverlapsWithoutReuse) {
  const auto lives = random_lives(100, 1);
  const Placement p = plan_memory(lives, false);
  std::size_t total = 0;
  for (const Lifetime& l : lives) total += (l.bytes + 63) / 64 * 64;
  EXPECT_EQ(p.peak, total);
  EXPECT_EQ(p.alive, plan_memory(lives).alive);
}

TEST(Planner, ASequenceOfStepsNeedsTwoBuffers) {
  std::vector<Lifetime> chain;
  for (int i = 0; i < 1000; ++i) chain.push_back({4096, i, i + 1});
  EXPECT_EQ(plan_memory(chain).peak, 2u * 4096);
}

TEST(Planner, NeighboursThatDieMerge) {
  // Both halves are unused now. A buffer of the full size fits into their memory.
  const std::vector<Lifetime> lives{{64, 0, 1}, {64, 0, 1}, {128, 2, 3}};
  EXPECT_EQ(plan_memory(lives).peak, 128u);
}

TEST(Planner, TheLastGapOfTheArenaIsExtended) {
  const std::vector<Lifetime> lives{{64, 0, 5}, {64, 0, 1}, {256, 2, 3}};
  EXPECT_EQ(plan_memory(lives).peak, 64u + 256);
}

TEST(Planner, EmptyBuffersNeedNoMemory) {
  const std::vector<Lifetime> lives{{0, 0, 9}, {64, 0, 1}, {0, 1, 1}};
  const Placement p = plan_memory(lives);
  EXPECT_EQ(p.peak, 64u);
  EXPECT_TRUE(plan_is_sound(lives, p));
}

TEST(Planner, TheCheckerDetectsOverlap) {
  const auto lives = random_lives(200, 3);
  const Placement good = plan_memory(lives);
  int caught = 0, tried = 0;
  for (std::size_t i = 1; i < lives.size(); ++i) {
    std::size_t j = i - 1;  // an older buffer that is still alive at the start of i
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
