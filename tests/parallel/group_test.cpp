// Tests that if a rank fails in any way, all other ranks report it in one line.
#include <tilegrad/parallel/group.h>

#include <gtest/gtest.h>

#include <atomic>

#include "parallel/control.h"
#include "tests/support/lost_ranks.h"

namespace tg {
namespace {

TEST(Group, DestructionLeavesNoResources) {
  const auto results = ask(2, [&](int rank) {
    const auto count = [](const char* folder) {
      namespace fs = std::filesystem;
      return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
    };
    const std::set<int> inherited = inherited_descriptors();
    parallel::join(world_of(rank, 2));  // the resources of a process's first thread are not
                                        // counted
    const auto files = count("/proc/self/fd"), threads = count("/proc/self/task");
    for (int i = 0; i < 20; ++i) {
      const auto group = parallel::join(world_of(rank, 2));
      numbers(group->communicator(), 0);
      EXPECT_EQ(count("/proc/self/task"), threads + 1);
      EXPECT_EQ(inherited_descriptors(), inherited);
    }
    EXPECT_EQ(count("/proc/self/fd"), files);
    EXPECT_EQ(count("/proc/self/task"), threads);
    const auto alone = parallel::join({});
    EXPECT_EQ(count("/proc/self/fd"), files);
    EXPECT_EQ(count("/proc/self/task"), threads);
    return "";
  });
  for (const RankResult& r : results) EXPECT_EQ(r.kind, '+') << r.text;
}

// A rank may leave immediately, and join again before rank 0 has welcomed all others.
TEST(Group, RejoinsImmediatelyWithoutAReport) {
  const auto results = ask(4, [&](int rank) {
    for (int i = 0; i < 50; ++i) parallel::join(world_of(rank, 4));
    return "";
  });
  for (const RankResult& r : results) EXPECT_EQ(r.kind, '+') << r.text;
}

TEST(Group, SingleRankNeedsNoPeers) {
  const auto group = parallel::join({});
  EXPECT_EQ(group->communicator().size(), 1);
  EXPECT_EQ(numbers(group->communicator(), 7), "7 ");
  EXPECT_THROW(group->communicator().share(std::vector<std::byte>((1 << 20) + 1), [](auto) {}), Error);
  group->progress(3);
  { const Group::Pause pause = group->pause(); }
  group->fail("nobody receives it");
  group->check();
  EXPECT_EQ(error_of([] { parallel::join({.rank = 2, .size = 2}); }),
            "wrong: [ranks] rank 2 of 2: expected 0 to size − 1, and a size of 1 to 1024");
  EXPECT_THROW(parallel::join({}, {.join_timeout = milliseconds(-1)}), Error);
}

std::vector<RankResult> three_on_one_host(const std::function<std::string(const World&)>& f) {
  return ask(3, [&](int rank) { return f(world_of(rank, 3)); });
}

TEST(Group, KilledRankIsReportedImmediatelyByAllOthers) {
  expect_killed_ranks_named(three_on_one_host);
}

TEST(Group, ErrorOfARankIsReportedByAllOthers) {
  auto results = ask(3, [](int rank) {
    const auto group = parallel::join(world_of(rank, 3));
    numbers(group->communicator(), 0);
    if (rank == 1) {
      group->fail("[checkpoint] cannot write out:\nno space");
      throw Error("rank 1's own");
    }
    return share_for_ever(*group);
  });
  EXPECT_EQ(results[1].text, "rank 1's own");
  for (const std::size_t r : {0, 2})
    EXPECT_EQ(results[r].text, "[ranks] rank 1 failed: [checkpoint] cannot write out: no space");

  results = ask(2, [](int rank) {  // the rank reports nothing, but an exception destroys its group
    const auto group = parallel::join(world_of(rank, 2));
    if (rank == 0) throw Error("rank 0's own");
    return share_for_ever(*group);
  });
  EXPECT_EQ(results[0].text, "rank 0's own");
  EXPECT_EQ(results[1].text, "[ranks] rank 0 failed: ended with an error");
}

TEST(Group, HangingRankIsReportedUnlessItPauses) {
  expect_hanging_ranks_named(three_on_one_host, milliseconds(500));
}

TEST(Group, StoppedProcessIsReportedAndKilled) {
  expect_stopped_ranks_named(three_on_one_host, milliseconds(500));
}

TEST(Group, EndedRankStopsTheWait) {
  for (const int ending : {0, 1}) {
    const auto results = ask(3, [&](int rank) {
      const auto group = parallel::join(world_of(rank, 3));
      numbers(group->communicator(), 0);
      if (rank == ending) return std::string("done");
      return error_of([&] { share_for_ever(*group); });
    });
    for (int rank = 0; rank < 3; ++rank) {
      if (rank == ending) continue;
      EXPECT_EQ(results[static_cast<std::size_t>(rank)].text.find(
                    "lost: [ranks] rank " + std::to_string(ending) + " exited while rank "),
                0u)
          << results[static_cast<std::size_t>(rank)].text;
    }
  }
}

// Ranks that end at different times, for example after their last step, are not reported as lost.
TEST(Group, RanksEndInAnyOrderWithoutReports) {
  const auto results = ask(3, [](int rank) {
    int losses = 0;
    {
      const auto group = parallel::join(world_of(rank, 3), {.on_lost = [&](const RankLost&) { ++losses; }});
      numbers(group->communicator(), 0);
      nap(milliseconds(rank == 0 ? 0 : 300 * rank));
      group->check();
    }
    return std::to_string(losses);
  });
  for (const RankResult& r : results) EXPECT_EQ(r.text, "0");
}

TEST(Group, EndsEvenIfAForkedChildContinues) {
  const auto results = ask(2, [](int rank) {
    auto group = parallel::join(world_of(rank, 2));
    numbers(group->communicator(), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      nap(milliseconds(5000));
      ::_exit(0);
    }
    const auto start = std::chrono::steady_clock::now();
    group.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(2000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    return "";
  });
  for (const RankResult& r : results) EXPECT_EQ(r.kind, '+') << r.text;
}

TEST(Group, HangingProcessIsKilledAfterItsCallback) {
  const auto results = ask(2, [](int rank) {
    JoinOptions options{.end_after = milliseconds(300)};
    options.on_lost = [&](const RankLost& e) {
      if (rank == 1 && std::string(e.what()) != "[ranks] rank 0 failed: enough") _exit(9);
    };
    const auto group = parallel::join(world_of(rank, 2), options);
    numbers(group->communicator(), 0);
    if (rank == 0) return group->fail("enough"), std::string("failed");
    nap(milliseconds(20'000));
    return std::string("still here");
  });
  EXPECT_EQ(results[0].text, "failed");
  EXPECT_EQ(results[1].text, "ended with exit code 75 in the middle");
}

TEST(Group, ProcessWithUnreadErrorsIsKilled) {
  const auto results = ask(2, [](int rank) {
    const auto group = parallel::join(world_of(rank, 2), {.end_after = milliseconds(300)});
    numbers(group->communicator(), 0);
    if (rank == 0) return group->fail("enough"), std::string("failed");
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return std::string("no pipe");
    ::dup2(ends[1], 2);
    const std::string more(1 << 20, 'x');
    (void)!::write(2, more.data(), more.size());  // share() does not return
    return std::string("still here");
  });
  EXPECT_EQ(results[1].text, "ended with exit code 75 in the middle");
}

// Code that waits outside of share() is notified of a loss, even if it starts to wait after the loss.
// check_lost() throws.
TEST(Group, CallbacksAreNotifiedOfALoss) {
  const auto results = ask(2, [](int rank) -> std::string {
    const auto group = parallel::join(world_of(rank, 2));
    Communicator& ranks = group->communicator();
    ranks.check_lost();
    std::atomic<int> heard{0};
    const auto first = ranks.on_lost([&] { ++heard; });
    ranks.on_lost([] { ::_exit(9); }).reset();  // unregistered
    numbers(ranks, 0);
    if (rank == 1) return group->fail("enough"), "failed";
    while (heard == 0) nap(milliseconds(1));
    const auto late = ranks.on_lost([&] { heard += 10; });
    nap(milliseconds(250));  // the time of two checks by the watchdog
    return std::to_string(heard) + " " + error_of([&] { ranks.check_lost(); });
  });
  EXPECT_EQ(results[0].text, "11 lost: [ranks] rank 1 failed: enough");
}

TEST(Group, CallbackThatThrowsIsAnError) {
  const auto results = ask(
      1,
      [](int) -> std::string {
        const auto group = parallel::join({});
        group->communicator().report_lost();
        try {
          return group->communicator().on_lost([] { throw Error("no thread"); }) ? "registered" : "";
        } catch (const Error& e) {
          return e.what();
        }
      },
      5);
  EXPECT_EQ(results[0].text, "no thread");
}

TEST(Group, ExitCodesFollowTheExceptions) {
  EXPECT_EQ(parallel::exit_code_of(RankLost("")), 75);
  EXPECT_EQ(parallel::exit_code_of(WorldError("")), 2);
  EXPECT_EQ(parallel::exit_code_of(Error("")), 1);
  EXPECT_EQ(parallel::exit_code_of(std::bad_alloc()), 1);
}

// Runs the detector by itself, with a clock that the test controls.
struct Watched {
  explicit Watched(int n, int timeout = 1000)
      : detector(n, milliseconds(timeout)), ranks(static_cast<std::size_t>(n)) {}
  // Returns the report within `ms` if the detector checks every 100 ms and all ranks except those in `silent`
  // send heartbeats.
  std::string after(int ms, const std::vector<std::size_t>& silent = {}) {
    for (int t = 0; t < ms; t += 100) {
      now += milliseconds(100);
      for (std::size_t r = 0; r < ranks.size(); ++r)
        if (std::find(silent.begin(), silent.end(), r) == silent.end()) ++ranks[r].beats;
      if (const auto lost = detector.look(now, ranks)) return std::to_string(lost->rank) + " " + lost->why;
    }
    return "";
  }
  parallel::HangDetector detector;
  parallel::HangDetector::Time now{std::chrono::hours(1)};
  std::vector<parallel::HangDetector::Seen> ranks;
};

TEST(HangDetector, ReportsTheRankThatOthersWaitFor) {
  Watched w(3);
  EXPECT_EQ(w.after(5000), "");  // ranks have no step times before the first step
  for (auto& r : w.ranks) r.steps = 8;
  EXPECT_EQ(w.after(5000), "");  // all ranks compute
  w.ranks[0].is_waiting = w.ranks[2].is_waiting = true;
  EXPECT_EQ(w.after(1000), "");
  EXPECT_EQ(w.after(200), "1 made no progress for 6.0 s after step 7; rank 0 is waiting for it");
}

// If a rank waits for its GPU, it may wait for its own work. A rank that has ended may have completed its
// part of the exchange.
TEST(HangDetector, GpuWaitMayTakeOneStepTime) {
  Watched w(2);
  for (auto& r : w.ranks) r.steps = 8;
  w.ranks[0].is_waiting = w.ranks[0].is_on_gpu = true;
  EXPECT_EQ(w.after(1000), "");
  EXPECT_EQ(w.after(100), "1 made no progress for 1.0 s after step 7; rank 0 is waiting for it");
  Watched long_steps(2, 3000);
  for (auto& r : long_steps.ranks) r.steps = 8;
  long_steps.ranks[0].is_waiting = long_steps.ranks[0].is_on_gpu = long_steps.ranks[1].has_ended = true;
  EXPECT_EQ(long_steps.after(3000), "");
  EXPECT_EQ(long_steps.after(100), "1 exited while rank 0 is waiting for it");
}

TEST(HangDetector, PauseRestartsTheTimeout) {
  Watched w(2);
  for (auto& r : w.ranks) r.steps = 1;
  w.ranks[1].is_waiting = true, w.ranks[0].pauses = 1;
  EXPECT_EQ(w.after(60'000), "");
  w.ranks[0].pauses = 0;
  EXPECT_EQ(w.after(1000), "");
  EXPECT_EQ(w.after(100), "0 made no progress for 1.0 s after step 0; rank 1 is waiting for it");
}

TEST(HangDetector, TimeoutIsTwentyMeanStepTimes) {
  Watched w(2);
  for (int step = 1; step <= 11; ++step) {
    for (auto& r : w.ranks) r.steps = step;
    EXPECT_EQ(w.after(500), "");
  }
  w.ranks[1].is_waiting = true;
  EXPECT_EQ(w.after(9'900), "");
  EXPECT_NE(w.after(500), "");
}

TEST(HangDetector, RestartsAfterItWasStoppedItself) {
  Watched w(2);
  for (auto& r : w.ranks) r.steps = 1;
  w.ranks[1].is_waiting = true;
  EXPECT_EQ(w.after(900), "");
  w.now += std::chrono::hours(1);
  EXPECT_EQ(w.after(1000), "");
  EXPECT_NE(w.after(100), "");
}

TEST(HangDetector, ProcessWithoutHeartbeatIsReportedInAnyState) {
  Watched w(3);
  for (auto& r : w.ranks) r.is_waiting = true;
  w.ranks[2].pauses = 1;
  EXPECT_EQ(w.after(900, {2}), "");
  EXPECT_EQ(w.after(300, {2}), "2 is stopped: no heartbeat for 1.0 s; rank 0 is waiting for it");
}

// The states of ranks on other hosts arrive with a delay.
TEST(HangDetector, WaitMayEndAfterTheOtherRankEnded) {
  Watched w(2);
  w.ranks[0].is_waiting = true;
  EXPECT_EQ(w.after(30'000), "");
  w.ranks[1].has_ended = true;
  EXPECT_EQ(w.after(500), "");
  w.ranks[0].is_waiting = false;
  EXPECT_EQ(w.after(5000), "");
}

TEST(HangDetector, ZeroTimeoutDetectsOnlyEndedRanks) {
  Watched w(2, 0);
  for (auto& r : w.ranks) r.steps = 1;
  w.ranks[0].is_waiting = true;
  EXPECT_EQ(w.after(600'000), "");
  w.ranks[1].has_ended = true;
  EXPECT_EQ(w.after(1000), "");
  EXPECT_EQ(w.after(100), "1 exited while rank 0 is waiting for it");
}

}  // namespace
}  // namespace tg
