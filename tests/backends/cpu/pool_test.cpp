// The thread pool, barriers and queues of parts: every part once, in every size, run after run.
#include "backends/cpu/pool.h"

#include <gtest/gtest.h>

#include "backends/cpu/worker.h"

namespace {

using namespace tg::cpu;

struct Job {
  Team* team;
  std::vector<int> counts;
  std::vector<long> sums;
  bool in_order = true;
};

void phases(void* data, int thread) {
  Job& job = *static_cast<Job*>(data);
  Worker w(*job.team, thread);
  const int parts = static_cast<int>(job.counts.size());
  for (int round = 0; round < 50; ++round) {
    w.each(parts, [&](std::int64_t p) { ++job.counts[static_cast<std::size_t>(p)]; });  // phase 1: count
    w.each(parts / 2, [&](std::int64_t p) { job.sums[static_cast<std::size_t>(p)] += p; });
    w.barrier();
    w.each(1, [&](std::int64_t) {  // phase 2: everybody's counts are there
      for (int c : job.counts) job.in_order = job.in_order && c == round + 1;
    });
    w.barrier();
  }
}

TEST(Pool, EveryPartRunsOncePerPhase) {
  for (int threads : {1, 2, 3, 5}) {
    Pool pool(threads);
    for (int parts : {0, 1, 2, 7, 100}) {
      Team team(threads);
      Job job{&team, std::vector<int>(static_cast<std::size_t>(parts)),
              std::vector<long>(static_cast<std::size_t>(parts))};
      pool.run(phases, &job);
      EXPECT_TRUE(job.in_order) << threads << " threads, " << parts << " parts";
      for (int c : job.counts) EXPECT_EQ(c, 50);
      for (int p = 0; p < parts / 2; ++p) EXPECT_EQ(job.sums[static_cast<std::size_t>(p)], 50L * p);
    }
  }
}

// Parts that wait for the one before them: no part may come to a thread while earlier ones are left to hand
// out.
TEST(Pool, PartsInOrderWaitForFewOthers) {
  constexpr int threads = 3, parts = 100;
  Pool pool(threads);
  Team team(threads);
  struct Chain {
    Team* team;
    std::atomic<int> done{0}, furthest{0};
  } chain{&team};
  pool.run(
      [](void* data, int thread) {
        Chain& c = *static_cast<Chain*>(data);
        Worker w(*c.team, thread);
        w.each_in_order(parts, [&](std::int64_t p) {
          const int ahead = static_cast<int>(p) - c.done.load();
          for (int seen = c.furthest; seen < ahead && !c.furthest.compare_exchange_weak(seen, ahead);) {
          }
          for (int spins = 0; c.done.load() != p; ++spins) relax(spins);
          ++c.done;
        });
      },
      &chain);
  EXPECT_EQ(chain.done, parts);
  EXPECT_LT(chain.furthest, threads);
}

TEST(Pool, RunsAgainAfterSleeping) {
  Pool pool(3);
  std::atomic<int> calls{0};
  for (int i = 0; i < 20; ++i) {
    if (i % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    pool.run([](void* c, int) { ++*static_cast<std::atomic<int>*>(c); }, &calls);
  }
  EXPECT_EQ(calls, 60);
}

TEST(Pool, CallersFromTwoThreadsTakeTurns) {
  int counts[2] = {0, 0};
  const auto caller = [&](int* count) {
    for (int i = 0; i < 200; ++i)
      run_on_pool(
          2,
          [](void* c, int t) {
            if (t == 0) ++*static_cast<int*>(c);
          },
          count);
  };
  std::thread other(caller, &counts[1]);
  caller(&counts[0]);
  other.join();
  EXPECT_EQ(counts[0], 200);
  EXPECT_EQ(counts[1], 200);
}

}  // namespace
