// Compares HangDetector with plain code, which implements the same rules, on random histories of ranks.
#include "parallel/control.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>

namespace tg::parallel {
namespace {

using std::chrono::milliseconds;
using Seen = HangDetector::Seen;

std::string seconds(std::int64_t ms) {
  char text[32];
  std::snprintf(text, sizeof text, ms < 10'000 ? "%.1f s" : "%.0f s", static_cast<double>(ms) / 1000);
  return text;
}

// Evaluates the rules on the history of all checks.
struct Rules {
  struct Look {
    std::int64_t time;
    std::vector<Seen> ranks;
  };
  std::int64_t step_timeout;
  std::vector<Look> looks;

  // Returns the time of the last check at which `differs` is true, or before which the rank was absent.
  template <class F>
  std::int64_t last_change(std::size_t rank, F differs) const {
    for (std::size_t i = looks.size(); i-- > 0;) {
      const bool is_first = i == 0 || looks[i].time - looks[i - 1].time > 2000;
      if (is_first || differs(looks[i - 1].ranks[rank], looks[i].ranks[rank])) return looks[i].time;
    }
    return 0;
  }
  std::int64_t last_move(std::size_t rank) const {
    return last_change(rank, [](const Seen& a, const Seen& b) {
      return std::tie(a.steps, a.moves, a.pauses, a.is_waiting, a.has_ended) !=
             std::tie(b.steps, b.moves, b.pauses, b.is_waiting, b.has_ended);
    });
  }
  std::int64_t last_beat(std::size_t rank) const {
    return last_change(rank, [](const Seen& a, const Seen& b) { return a.beats != b.beats; });
  }
  // Returns step_timeout, or 20 times the mean step time since the first step if that is longer.
  std::int64_t timeout_of(std::size_t rank) const {
    std::int64_t first_steps = 0, first = 0, last = 0, before = 0;
    for (const Look& l : looks) {
      const std::int64_t steps = l.ranks[rank].steps;
      if (steps != before && before == 0) first_steps = steps, first = l.time;
      if (steps != before) last = l.time;
      before = steps;
    }
    return before <= first_steps ? step_timeout
                                 : std::max(step_timeout, 20 * (last - first) / (before - first_steps));
  }
  std::string verdict() const {
    const Look& now = looks.back();
    std::vector<std::int64_t> moved, beaten, timeout;
    for (std::size_t r = 0; r < now.ranks.size(); ++r)
      moved.push_back(last_move(r)), beaten.push_back(last_beat(r)), timeout.push_back(timeout_of(r));
    std::size_t waiter = now.ranks.size();  // the rank that has waited longest
    for (std::size_t r = 0; r < now.ranks.size(); ++r)
      if (now.ranks[r].is_waiting && (waiter == now.ranks.size() || moved[r] < moved[waiter])) waiter = r;
    if (waiter == now.ranks.size()) return "";
    const std::int64_t waited = now.time - moved[waiter];
    const std::string whom = "rank " + std::to_string(waiter) + " is waiting for it";
    const auto lost = [&](std::size_t r, const std::string& why) {
      return std::to_string(r) + " " + why + whom;
    };
    for (std::size_t r = 0; r < now.ranks.size(); ++r)
      if (now.ranks[r].has_ended && !now.ranks[waiter].is_on_gpu && waited >= 1000 &&
          now.time - moved[r] >= 1000)
        return lost(r, "exited while ");
    if (step_timeout == 0) return "";
    for (std::size_t r = 0; r < now.ranks.size(); ++r)
      if (now.ranks[r].has_ended && waited >= timeout[r] && now.time - moved[r] >= timeout[r])
        return lost(r, "exited while ");
    for (std::size_t r = 0; r < now.ranks.size(); ++r)
      if (r != waiter && now.time - beaten[r] >= timeout[r] && waited >= timeout[r])
        return lost(r, "is stopped: no heartbeat for " + seconds(now.time - beaten[r]) + "; ");
    for (std::size_t r = 0; r < now.ranks.size(); ++r) {
      const Seen& s = now.ranks[r];
      if (!s.is_waiting && !s.has_ended && s.pauses == 0 && s.steps > 0 &&
          now.time - moved[r] >= timeout[r] && waited >= timeout[r])
        return lost(r, "made no progress for " + seconds(now.time - moved[r]) + " after step " +
                           std::to_string(s.steps - 1) + "; ");
    }
    return "";
  }
};

TEST(HangDetectorRules, HoldForRandomHistories) {
  std::map<std::string, int> verdicts;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto one_of = [&](std::initializer_list<std::int64_t> values) {
      return values.begin()[random() % values.size()];
    };
    const auto chance = [&](unsigned percent) { return random() % 100 < percent; };
    const std::size_t n = 1 + random() % 4;
    Rules rules{one_of({0, 500, 1000, 1500}), {}};
    HangDetector detector(static_cast<int>(n), milliseconds(rules.step_timeout));
    std::vector<Seen> ranks(n);
    std::vector<bool> is_still(n), is_silent(n);
    for (std::size_t r = 0; r < n; ++r) is_still[r] = chance(60), is_silent[r] = chance(20);
    std::int64_t time = 3'600'000;
    const std::int64_t tick = one_of({50, 100, 250, 500});
    for (int look = 0; look < 40; ++look) {
      time += chance(3) ? one_of({1, 1999, 2000, 2001, 30'000}) : tick;
      for (std::size_t r = 0; r < n; ++r) {
        Seen& s = ranks[r];
        if (!is_silent[r] && chance(90)) ++s.beats;
        if (!is_still[r] && !s.has_ended && chance(20)) ++s.moves;
        if (!s.has_ended && (look < 8 ? chance(25) : chance(3))) s.steps += look == 0 ? 5 : 1;
        if (chance(look < 10 ? 15 : 3)) s.is_waiting = !s.is_waiting, s.is_on_gpu = chance(30);
        if (!is_still[r] && chance(3)) s.pauses = s.pauses == 0 ? 1 : 0;
        if (chance(1)) s.has_ended = true;
      }
      rules.looks.push_back({time, ranks});
      const std::optional<LostRank> lost =
          detector.look(HangDetector::Time(milliseconds(time)), std::span<const Seen>(ranks));
      const std::string got = lost ? std::to_string(lost->rank) + " " + lost->why : "";
      ASSERT_EQ(got, rules.verdict()) << "history " << seed << ", look " << look;
      std::string verdict = "none";
      for (const char* kind : {"made no progress", "is stopped", "exited"})
        if (got.find(kind) != std::string::npos) verdict = kind;
      ++verdicts[verdict];
    }
  }
  for (const char* kind : {"none", "made no progress", "is stopped", "exited"})
    EXPECT_GT(verdicts[kind], 20) << kind;
}

// Before its first check, a rank has no history, regardless of the state that it reports then.
TEST(HangDetectorRules, FieldsOfARankAreInitiallyFalse) {
  const Seen s;
  EXPECT_EQ(s.steps, 0);
  EXPECT_EQ(s.moves + s.pauses + s.beats, 0u);
  EXPECT_FALSE(s.is_waiting || s.has_ended || s.is_on_gpu);
}

}  // namespace
}  // namespace tg::parallel
