// Tests moving threads between processors. After a move, the thread runs on the new processor. The set of
// allowed processors does not change.
#include "core/os/thread.h"

#include <gtest/gtest.h>

#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

namespace {

using namespace tg::os;

// Returns the allowed processors of a thread. 0 means the calling thread.
std::vector<int> processors(ThreadId thread = 0) {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(thread, sizeof set, &set);
  std::vector<int> all;
  for (int p = 0; p < CPU_SETSIZE; ++p)
    if (CPU_ISSET(p, &set)) all.push_back(p);
  return all;
}

// The system may move a thread back at any time. So one successful attempt is enough.
template <class Attempt>
bool succeeds(Attempt&& attempt) {
  for (int i = 0; i < 100; ++i)
    if (attempt()) return true;
  return false;
}

TEST(OsThread, LeavesAProcessorAndKeepsTheSetOfProcessors) {
  const std::vector<int> before = processors();
  if (before.size() < 2) GTEST_SKIP() << "one processor";
  const int count = static_cast<int>(before.size());
  EXPECT_TRUE(succeeds([&] {
    const int here = current_processor();
    leave_processor(here, count);
    return current_processor() != here;
  }));
  EXPECT_EQ(processors(), before);
}

TEST(OsThread, StaysIfThreadsOutnumberProcessors) {
  const int count = static_cast<int>(processors().size());
  EXPECT_TRUE(succeeds([&] {
    const int here = current_processor();
    leave_processor(here, count + 1);
    return current_processor() == here;
  }));
}

TEST(OsThread, MovesAnotherThreadToAnyOfItsProcessors) {
  const std::vector<int> before = processors();
  std::atomic<ThreadId> id{0};
  std::atomic<int> at{-1};
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    id = current_thread();
    while (!stop) at = current_processor();
  });
  while (id == 0 || at < 0) std::this_thread::yield();
  for (int p : before) {
    EXPECT_TRUE(succeeds([&] {
      move_thread(id, p);
      for (int i = 0; i < 1000 && at != p; ++i) std::this_thread::yield();
      return at == p;
    })) << p;
    EXPECT_EQ(processors(id), before);
  }
  stop = true;
  thread.join();
}

TEST(OsThread, MovesAtTheSameTimeKeepTheSetOfProcessors) {
  const std::vector<int> before = processors();
  std::atomic<ThreadId> id{0};
  std::atomic<bool> stop{false};
  std::thread target([&] {
    id = current_thread();
    while (!stop) leave_processor(current_processor(), 1);
    EXPECT_EQ(processors(), before);
  });
  while (id == 0) std::this_thread::yield();
  std::vector<std::thread> movers;
  for (int n = 0; n < 4; ++n)
    movers.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) move_thread(id, current_processor());
    });
  for (std::thread& t : movers) t.join();
  stop = true;
  target.join();
}

TEST(OsThread, ProcessorsThatAThreadMayNotUseAreIgnored) {
  const std::vector<int> before = processors();
  for (int p : {-1, CPU_SETSIZE - 1}) {
    move_thread(current_thread(), p);
    leave_processor(p, 1);
    EXPECT_EQ(processors(), before);
  }
}

TEST(OsThread, ProcessorTimeOfARunningThreadGrowsAndOfAnEndedThreadIsUnknown) {
  ThreadId ended = 0;
  std::thread([&] {
    ended = current_thread();
    const double begin = processor_seconds(ended);
    EXPECT_GE(begin, 0);
    while (processor_seconds(ended) <= begin) {
    }
  }).join();
  EXPECT_TRUE(succeeds([&] {
    std::this_thread::yield();
    return processor_seconds(ended) < 0;
  }));
}

}  // namespace
