// Tests a group: the state that it writes to the ranks' memory, its end after a loss, and the limits of its
// options.
#include "tests/support/local_meeting.h"

namespace tg {
namespace {

using namespace parallel;
using namespace testing;

TEST(GroupState, ProgressAndPausesAreShared) {
  GroupOfRankOne one;
  const RankState& state = one.memory->state(1);
  std::uint32_t moves = state.moves;
  for (const auto& [step, steps] : {std::pair<std::int64_t, std::int64_t>{0, 1},
                                    {41, 42},
                                    {-1, 1},
                                    {INT64_MIN, 1},
                                    {INT64_MAX - 1, INT64_MAX},
                                    {INT64_MAX, INT64_MAX}}) {
    one.group->progress(step);
    EXPECT_EQ(state.steps, steps);
    EXPECT_EQ(state.moves, ++moves);
  }
  {
    const Group::Pause first = one.group->pause();
    EXPECT_EQ(state.pauses, 1u);
    Group::Pause second = one.group->pause();
    EXPECT_EQ(state.pauses, 2u);
    const Group::Pause moved = std::move(second);
    EXPECT_EQ(state.pauses, 2u);
  }
  EXPECT_EQ(state.pauses, 0u);
  EXPECT_EQ(state.is_waiting, 0u);
  one.group->communicator().note_wait(true);
  EXPECT_EQ(state.is_waiting, 2u);
  EXPECT_EQ(state.moves, moves);
  one.group->communicator().note_wait(false);
  EXPECT_EQ(state.is_waiting, 0u);
  EXPECT_EQ(state.moves, moves + 1);
  EXPECT_EQ(one.group->communicator().rank(), 1);
  one.group->check();
  one.group.reset();
  EXPECT_EQ(state.has_ended, 1u);
  EXPECT_FALSE(one.memory->lost());
}

TEST(GroupState, FailureIsReportedForThisRank) {
  for (const bool throws : {false, true}) {
    GroupOfRankOne one;
    EXPECT_EQ(error_of([&] {
                const auto group = std::move(one.group);
                if (throws) throw WorldError("on purpose");
                group->fail("no room");
                group->check();
              }),
              throws ? "wrong: on purpose" : "lost: [ranks] rank 1 failed: no room");
    ASSERT_TRUE(one.memory->lost());
    EXPECT_EQ(one.memory->lost()->rank, 1);
    EXPECT_EQ(one.memory->lost()->why, throws ? "failed: ended with an error" : "failed: no room");
    EXPECT_EQ(one.memory->state(1).has_ended, 0u);
  }
}

TEST(GroupState, LossIsReportedOnce) {
  for (const bool callback_throws : {false, true}) {
    std::atomic<int> told = 0, heard = 0;
    std::string line;
    GroupOfRankOne one(JoinOptions{.on_lost = [&](const RankLost& e) {
      line = e.what();
      ++told;
      if (callback_throws) throw Error("on purpose");
    }});
    const auto listener = one.group->communicator().on_lost([&] { ++heard; });
    const std::uint32_t beats = one.memory->state(1).beats;
    one.memory->mark_lost(2, "is somewhere else", 0);
    while (told == 0 || one.memory->state(1).beats < beats + 2) nap(milliseconds(5));
    EXPECT_EQ(told, 1);
    EXPECT_EQ(heard, 1);
    EXPECT_EQ(line, "[ranks] rank 2 is somewhere else");
  }
}

// On one host, rank 0 sends nothing, so the end of its connection means that its process has ended.
TEST(GroupState, ClosedConnectionIsALossUnlessTheRankEnded) {
  for (const bool has_ended : {false, true}) {
    GroupOfRankOne one;
    one.memory->state(0).has_ended = has_ended;
    ::close(std::exchange(one.host, -1));
    const std::uint32_t beats = one.memory->state(1).beats;
    while (one.memory->state(1).beats < beats + 2 && !one.memory->lost()) nap(milliseconds(5));
    EXPECT_EQ(one.memory->lost().has_value(), !has_ended);
    if (!has_ended) {
      EXPECT_EQ(error_of([&] { one.group->check(); }),
                "lost: [ranks] rank 0 is lost: its process exited without reporting an error, or was killed");
    }
  }
}

TEST(GroupOptions, ValuesBeyondLimitsAreRejected) {
  constexpr milliseconds year(std::chrono::hours(24 * 365)), ms(1);
  const VirtualTime time;
  const auto joined = [](World w, const JoinOptions& o) {
    try {
      join(w, o);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("none");
  };
  const World alone{};
  for (const milliseconds t : {milliseconds(0), ms, year}) {
    EXPECT_EQ(joined(alone, {.join_timeout = t}), "none");
    EXPECT_EQ(joined(alone, {.step_timeout = t}), "none");
    EXPECT_EQ(joined(alone, {.end_after = t, .save_after = t}), "none");
  }
  for (const milliseconds t : {-ms, year + ms}) {
    const std::string line =
        "[ranks] a timeout of " + std::to_string(t.count()) + " ms: expected 0 to a year";
    EXPECT_EQ(joined(alone, {.join_timeout = t}), line);
    EXPECT_EQ(joined(alone, {.step_timeout = t}), line);
    EXPECT_EQ(joined(alone, {.end_after = t}), line);
    EXPECT_EQ(joined(alone, {.save_after = t}), line);
  }
  const JoinOptions defaults;
  EXPECT_EQ(defaults.join_timeout, milliseconds(120'000));
  EXPECT_EQ(defaults.step_timeout, milliseconds(60'000));
  EXPECT_EQ(defaults.end_after, milliseconds(0));
  EXPECT_EQ(defaults.save_after, milliseconds(120'000));
  // Tests ranks and numbers of ranks. If they are valid, the rank searches for rank 0.
  const JoinOptions now{.join_timeout = milliseconds(0)};
  const auto of = [&](int rank, int size) { return joined(local(rank, size), now); };
  const std::string absent = "[ranks] rank 0 did not join within 0.0 s";
  EXPECT_EQ(of(1, 2), absent);
  EXPECT_EQ(of(1023, 1024), absent);
  for (const auto& [rank, size] : {std::pair(1024, 1025), {1, 1}, {2, 2}, {-1, 2}, {0, 0}, {0, -1}})
    EXPECT_EQ(of(rank, size), "[ranks] rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                  ": expected 0 to size − 1, and a size of 1 to 1024");
  World hosts = local(1, 2);
  hosts.local_size = 1, hosts.address = "127.0.0.1", hosts.token = std::string(32, 't');
  for (const int port : {0, -1, 65536}) {
    hosts.port = port;
    EXPECT_EQ(joined(hosts, now), "[ranks] port " + std::to_string(port) + ": expected 1 to 65535");
  }
  for (const int port : {1, 65535}) {
    hosts.port = port;
    EXPECT_EQ(joined(hosts, now).find("[ranks] rank 0 did not join within 0.0 s (127.0.0.1:"), 0u);
  }
}

}  // namespace
}  // namespace tg
