// Compares BeamSearch with a simple search, which sorts a list of all continuations.
#include <tilegrad/nn/generation/sampling.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/support/files.h"

namespace {

using namespace tg;
using Tokens = std::vector<std::int32_t>;
using tg::testing::error_of;

TEST(BeamSearch, RefusesInvalidBeamsAndLogitsWithoutProbabilities) {
  EXPECT_THROW(nn::BeamSearch(0, 1, {}), Error);
  EXPECT_THROW(nn::BeamSearch(1, 0, {}), Error);
  nn::BeamSearch search(2, 3, {});
  constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  using Logits = std::vector<float>;
  EXPECT_NE(error_of([&] { search.offer(1, Logits{1, 2}); }).find("beam 1 of 1"), std::string::npos);
  for (const Logits& logits : {Logits{}, Logits{nan, nan}, Logits{-inf, -inf}, Logits{1, inf}})
    EXPECT_NE(error_of([&] { search.offer(0, logits); }).find("no token has a probability"),
              std::string::npos);
  search.offer(0, Logits{nan, 1, -inf, 1});
  EXPECT_TRUE(search.complete());
  EXPECT_EQ(search.advance(), (std::vector<std::size_t>{0, 0}));
  EXPECT_EQ(search.live()[0].tokens, Tokens{1});
  EXPECT_EQ(search.live()[1].tokens, Tokens{3});
}

TEST(BeamSearch, TheNumberOfRunningBeamsStaysConstant) {
  nn::BeamSearch search(3, 2, {0, 1});
  search.offer(0, std::vector<float>{5, 4, 3, 2, 1, 0});
  EXPECT_EQ(search.advance(), (std::vector<std::size_t>{0, 0, 0}));
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(search.live().at(i).tokens, Tokens{static_cast<std::int32_t>(i) + 2});
}

TEST(BeamSearch, RepeatedLogitsReplaceTheFirst) {
  const std::vector<float> first{9, 8, 7, 6}, again{1, 2, 3, 4}, other{0, 0, 0, 1};
  nn::BeamSearch twice(2, 3, {}), once(2, 3, {});
  for (const bool is_start : {true, false}) {
    twice.offer(0, first), twice.offer(0, again), once.offer(0, again);
    EXPECT_EQ(twice.complete(), is_start);
    if (!is_start) twice.offer(1, other), once.offer(1, other), twice.offer(0, again);
    EXPECT_TRUE(twice.complete());
    EXPECT_EQ(twice.advance(), once.advance());
    ASSERT_EQ(twice.live().size(), once.live().size());
    for (std::size_t i = 0; i < once.live().size(); ++i) {
      EXPECT_EQ(twice.live()[i].tokens, once.live()[i].tokens);
      EXPECT_EQ(twice.live()[i].score, once.live()[i].score);
    }
  }
}

// Returns random logits for each sequence.
std::vector<float> logits_after(const Tokens& sequence, std::uint64_t seed) {
  for (const std::int32_t t : sequence)
    seed = (seed + static_cast<std::uint64_t>(t) + 1) * 0x9E3779B97F4A7C15u + 1;
  std::mt19937_64 random(seed);
  std::vector<float> logits(5);
  for (float& x : logits) x = std::normal_distribution<float>(0, 2)(random);
  return logits;
}
bool is_likelier(const nn::Hypothesis& a, const nn::Hypothesis& b) {
  return a.score > b.score;
}

bool is_end(const Tokens& ends, std::int32_t token) {
  return std::ranges::find(ends, token) != ends.end();
}

// Lists every continuation of the running beams.
std::vector<nn::Hypothesis> searched(std::size_t beams, std::int64_t tokens, const Tokens& ends,
                                     std::uint64_t seed) {
  std::vector<nn::Hypothesis> live(1), ended;
  for (std::int64_t n = 0; n < tokens && !live.empty(); ++n) {
    std::vector<nn::Hypothesis> all;
    for (const nn::Hypothesis& h : live) {
      const std::vector<float> logits = logits_after(h.tokens, seed);
      double sum = 0;
      for (const float x : logits) sum += std::exp(double{x});
      for (std::int32_t t = 0; t < 5; ++t) {
        all.push_back({h.tokens, h.score + logits[t] - std::log(sum)});
        all.back().tokens.push_back(t);
      }
    }
    std::ranges::sort(all, is_likelier);
    live.clear();
    for (const nn::Hypothesis& h : all)
      if (live.size() < beams) (is_end(ends, h.tokens.back()) ? ended : live).push_back(h);
    std::ranges::sort(ended, is_likelier);
    if (ended.size() > beams) ended.resize(beams);
    if (ended.size() == beams && ended.back().score >= live[0].score) return ended;
  }
  ended.insert(ended.end(), live.begin(), live.end());
  std::ranges::sort(ended, is_likelier);
  if (ended.size() > beams) ended.resize(beams);
  return ended;
}

TEST(BeamSearch, FindsTheLikeliestOfAllCandidates) {
  int ended = 0, ended_early = 0;
  for (std::uint64_t seed = 1; seed <= 500; ++seed) {
    const std::int64_t beams = 1 + static_cast<std::int64_t>(seed % 6),
                       tokens = 1 + static_cast<std::int64_t>(seed % 7);
    Tokens ends = {static_cast<std::int32_t>(seed % 5)};  // one or two prompts
    if (seed % 4 < 2) ends.push_back((ends[0] + 2) % 5);
    nn::BeamSearch search(beams, tokens, ends);
    std::int64_t steps = 0;
    do {
      ++steps;
      std::vector<std::size_t> order(search.live().size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
      for (const std::size_t b : order) {
        EXPECT_FALSE(search.complete());
        search.offer(b, logits_after(search.live()[b].tokens, seed));
      }
      EXPECT_TRUE(search.complete());
      const std::vector<nn::Hypothesis> before = search.live();
      const std::vector<std::size_t> parents = search.advance();
      for (std::size_t i = 0; i < parents.size(); ++i) {
        const Tokens& sequence = search.live()[i].tokens;
        EXPECT_EQ(before.at(parents[i]).tokens, Tokens(sequence.begin(), sequence.end() - 1));
      }
      if (parents.empty()) break;
    } while (steps < 10);
    const auto got = search.results(),
               expected = searched(static_cast<std::size_t>(beams), tokens, ends, seed);
    ASSERT_EQ(got.size(), expected.size()) << "seed " << seed;
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].tokens, expected[i].tokens) << "seed " << seed;
      EXPECT_NEAR(got[i].score, expected[i].score, 1e-9);
      ended += is_end(ends, got[i].tokens.back());
    }
    ended_early += steps < tokens;
  }
  EXPECT_GT(ended, 300);
  EXPECT_GT(ended_early, 30);
}

// Logits have few distinct values. Thus many continuations are equally likely. Among equally likely
// continuations, the earlier beam and then the lower token are chosen. NaN and −∞ are never chosen.
TEST(BeamSearch, PrefersTheEarlierBeamAndTheLowerTokenInTies) {
  std::mt19937 random(9);
  int ties = 0, ended = 0;
  for (int round = 0; round < 400; ++round) {
    const auto beams = static_cast<std::int64_t>(1 + random() % 4),
               tokens = static_cast<std::int64_t>(1 + random() % 4);
    Tokens ends;
    for (std::int32_t t = 0; t < 6; ++t)
      if (random() % 4 == 0) ends.push_back(t);
    nn::BeamSearch search(beams, tokens, ends);
    std::vector<nn::Hypothesis> live(1), over;
    for (std::int64_t step = 1;; ++step) {
      struct Next {
        nn::Hypothesis h;
        std::size_t beam;
      };
      std::vector<Next> all;
      for (std::size_t b = 0; b < live.size(); ++b) {
        std::vector<float> logits{0, 0, 1, 1, 2, 2};
        std::shuffle(logits.begin(), logits.end(), random);
        logits[random() % 6] = random() % 2 ? std::nanf("") : -std::numeric_limits<float>::infinity();
        search.offer(b, logits);
        double most = -1, sum = 0;
        for (const float x : logits) most = std::isnan(x) ? most : std::max(most, double{x});
        for (const float x : logits) sum += std::isnan(x) ? 0 : std::exp(x - most);
        for (std::int32_t t = 0; t < 6; ++t)
          if (const float x = logits[static_cast<std::size_t>(t)]; std::isfinite(x)) {
            all.push_back({live[b], b});
            all.back().h.tokens.push_back(t);
            all.back().h.score = live[b].score + (x - (most + std::log(sum)));
          }
      }
      std::stable_sort(all.begin(), all.end(),
                       [](const Next& a, const Next& b) { return a.h.score > b.h.score; });
      live.clear();
      std::vector<std::size_t> parents;
      for (std::size_t i = 0; i < all.size() && std::ssize(live) < beams; ++i) {
        ties += i > 0 && all[i].h.score == all[i - 1].h.score;
        if (is_end(ends, all[i].h.tokens.back()))
          over.push_back(all[i].h), ++ended;
        else
          live.push_back(all[i].h), parents.push_back(all[i].beam);
      }
      std::stable_sort(over.begin(), over.end(), is_likelier);
      over.resize(std::min<std::size_t>(over.size(), static_cast<std::size_t>(beams)));
      const bool is_over =
          live.empty() || step == tokens || (std::ssize(over) == beams && over.back().score >= live[0].score);
      ASSERT_EQ(search.advance(), is_over ? std::vector<std::size_t>{} : parents) << round;
      ASSERT_EQ(search.live().size(), live.size());
      for (std::size_t i = 0; i < live.size(); ++i)
        ASSERT_EQ(search.live()[i].tokens, live[i].tokens) << round;
      if (!is_over) continue;
      if (step == tokens) over.insert(over.end(), live.begin(), live.end());
      std::stable_sort(over.begin(), over.end(), is_likelier);
      over.resize(std::min<std::size_t>(over.size(), static_cast<std::size_t>(beams)));
      const std::vector<nn::Hypothesis> got = search.results();
      ASSERT_EQ(got.size(), over.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].tokens, over[i].tokens) << round;
        ASSERT_DOUBLE_EQ(got[i].score, over[i].score);
      }
      break;
    }
  }
  EXPECT_GT(ties, 500);
  EXPECT_GT(ended, 200);
}

}  // namespace
