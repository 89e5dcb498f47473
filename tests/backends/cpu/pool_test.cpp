// Tests the thread pool. In every run, each part must run exactly once, on any thread. No thread may wait for
// a thread that has no part. A waiting thread must sleep.
#include "backends/cpu/pool.h"

#include <gtest/gtest.h>

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <tilegrad/core/base/error.h>
#include "backends/cpu/worker.h"

namespace {

using namespace tg::cpu;
using std::chrono::milliseconds;

// A job with one function for all of its stages.
struct Stages final : Job {
  Stages(int count, std::function<void(Worker&, int stage)> f) : count(count), f(std::move(f)) {}
  int next(int thread) override {
    if (between) between(thread, at);
    return at < count ? at++ : end;
  }
  void share(Worker& w, int stage) override { f(w, stage); }
  int count, at = 0;
  std::function<void(Worker&, int)> f;
  std::function<void(int thread, int stage)> between;
};

// The processor time of all threads of this process.
double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

TEST(Pool, EveryPartRunsOncePerPhase) {
  for (int threads : {1, 2, 3, 5, 12}) {
    Pool pool(threads);
    for (int parts : {0, 1, 2, 7, 100}) {
      std::vector<int> counts(static_cast<std::size_t>(parts)), sums(static_cast<std::size_t>(parts));
      int phases = 0;
      bool complete = true;
      Stages job(50, [&](Worker& w, int stage) {
        w.each(parts, [&](std::int64_t p) { ++counts[static_cast<std::size_t>(p)]; });
        w.each(parts / 2, [&](std::int64_t p) { sums[static_cast<std::size_t>(p)] += static_cast<int>(p); });
        for (int phase = 1; phase < 4; ++phase) {
          if (!w.barrier()) return;
          w.each(1, [&](std::int64_t) {
            ++phases;
            for (int c : counts) complete = complete && c == stage + 1;
          });
        }
      });
      pool.run(job);
      EXPECT_TRUE(complete) << threads << " threads, " << parts << " parts";
      EXPECT_EQ(phases, 150);
      for (int c : counts) EXPECT_EQ(c, 50);
      for (int p = 0; p < parts / 2; ++p) EXPECT_EQ(sums[static_cast<std::size_t>(p)], 50 * p);
    }
  }
}

// Each part of a phase reads the results of all parts of the previous phase. Parts sleep at random, and so do
// steps between stages. So threads join a stage late, or join only its later phases.
TEST(Pool, ResultsAreEqualForAnyNumberOfThreadsThatSleepAtRandom) {
  constexpr std::int64_t parts = 13;
  constexpr int stages = 60;
  const auto run = [&](int threads, bool sleeps) {
    Pool pool(threads);
    std::vector<std::uint64_t> a(parts, 1), b(parts);
    const auto nap = [&](std::uint64_t seed) {
      if (sleeps && seed % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(seed % 300));
    };
    Stages job(stages, [&](Worker& w, int stage) {
      for (int phase = 0; phase < 3; ++phase) {
        auto &from = phase % 2 == 0 ? a : b, &to = phase % 2 == 0 ? b : a;
        if (phase > 0 && !w.barrier()) return;
        w.each(parts, [&](std::int64_t p) {
          std::uint64_t sum = static_cast<std::uint64_t>(stage * 7 + p);
          for (std::uint64_t v : from) sum = sum * 6364136223846793005u + v;
          nap(sum >> 40);
          to[static_cast<std::size_t>(p)] = sum;
        });
      }
      if (!w.barrier()) return;
      w.each(parts, [&](std::int64_t p) { a[static_cast<std::size_t>(p)] = b[static_cast<std::size_t>(p)]; });
    });
    job.between = [&](int, int stage) {
      a[0] += static_cast<std::uint64_t>(stage);
      nap(a[0] >> 40);
    };
    pool.run(job);
    return a;
  };
  const std::vector<std::uint64_t> expected = run(1, false);
  for (int threads : {2, 3, 8})
    for (bool sleeps : {false, true}) EXPECT_EQ(run(threads, sleeps), expected) << threads << " threads";
}

// Stops one thread of a pool with a signal at any point. To the pool, this looks like a processor that runs
// another process. Only one thread can be stopped at a time.
class Held {
 public:
  explicit Held(pthread_t thread) {
    EXPECT_EQ(pipe(pipe_), 0);
    struct sigaction action {};
    action.sa_handler = [](int) {
      char byte = 0;
      is_held_ = true;
      while (read(pipe_[0], &byte, 1) != 1) {
      }
      is_held_ = false;
    };
    sigaction(SIGUSR1, &action, nullptr);
    pthread_kill(thread, SIGUSR1);
    while (!is_held_) std::this_thread::yield();
  }
  ~Held() {
    EXPECT_EQ(write(pipe_[1], "x", 1), 1);
    while (is_held_) std::this_thread::yield();
    close(pipe_[0]), close(pipe_[1]);
  }
  Held(const Held&) = delete;

 private:
  inline static int pipe_[2];
  inline static std::atomic<bool> is_held_{false};
};

// Finds all threads of the pool except the caller. Each thread gets one part, which waits until all other
// parts have started.
std::vector<pthread_t> threads_of(Pool& pool) {
  std::atomic<int> here{0};
  std::vector<pthread_t> found(static_cast<std::size_t>(pool.threads()));
  Stages job(1, [&](Worker& w, int) {
    w.each(w.threads, [&](std::int64_t) {
      found[static_cast<std::size_t>(w.thread())] = pthread_self();
      for (++here; here < w.threads;) std::this_thread::yield();
    });
  });
  pool.run(job);
  found.erase(found.begin());
  return found;
}

void run_phases(Pool& pool, int stages) {
  std::atomic<int> parts{0};
  Stages job(stages, [&](Worker& w, int) {
    w.each(5, [&](std::int64_t) { ++parts; });
    if (w.barrier()) w.each(5, [&](std::int64_t) { ++parts; });
  });
  pool.run(job);
  EXPECT_EQ(parts, 10 * stages);
}

TEST(Pool, ARunNeedsNoThreadThatIsHeldBetweenRuns) {
  Pool pool(3);
  for (const pthread_t thread : threads_of(pool)) {
    const Held held(thread);
    run_phases(pool, 100);
  }
  run_phases(pool, 100);
}

// Waits until the system reports that a thread of this process is asleep.
void wait_for_sleep(pid_t thread) {
  for (std::string state; state != "S"; std::this_thread::yield()) {
    std::ifstream stat("/proc/self/task/" + std::to_string(thread) + "/stat");
    std::string id, name;
    stat >> id >> name >> state;
  }
}

// The thread is stopped while it waits at a barrier inside a stage. Meanwhile, the caller ends the stage and
// the run and frees the run's memory.
TEST(Pool, ARunNeedsNoThreadThatIsHeldAtABarrier) {
  for (const int held_in : {0, 1, 2}) {
    Pool pool(2);
    const pthread_t other = threads_of(pool)[0];
    std::unique_ptr<Held> held;
    std::atomic<pid_t> waiting{0};
    std::atomic<int> here{0};
    auto parts = std::make_unique<std::atomic<int>>(0);
    auto job = std::make_unique<Stages>(3, [&](Worker& w, int stage) {
      for (int phase = 0; phase < 3; ++phase) {
        if (phase > 0 && !w.barrier()) {
          EXPECT_FALSE(w.barrier());  // the thread does not rejoin the stage
          w.each(2, [](std::int64_t) { ADD_FAILURE() << "a thread that has left received a part"; });
          return;
        }
        w.each(2, [&](std::int64_t) {
          ++*parts;
          if (stage > 0 || phase != held_in) return;
          for (++here; here < 2;) std::this_thread::yield();  // each thread has a part
          if (pthread_equal(pthread_self(), other)) {
            waiting = static_cast<pid_t>(syscall(SYS_gettid));
          } else {
            while (waiting == 0) std::this_thread::yield();
            wait_for_sleep(waiting);
            held = std::make_unique<Held>(other);
          }
        });
      }
    });
    pool.run(*job);
    EXPECT_EQ(*parts, 18);
    EXPECT_TRUE(held);
    job.reset(), parts.reset();
    held.reset();
    run_phases(pool, 20);
  }
}

// Measures the processor time of the process while a pool thread or the test is idle. A single spinning
// thread would use all of this time.
void expect_sleep(const std::function<void(std::function<void()> idle)>& run) {
  constexpr double idle_seconds = 0.2;
  double used = -1;
  run([&] {
    const double before = cpu_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(idle_seconds));
    used = cpu_seconds() - before;
  });
  EXPECT_GE(used, 0);
  EXPECT_LT(used, idle_seconds / 4);
}

TEST(Pool, ThreadsSleepBetweenRuns) {
  Pool pool(3);
  run_phases(pool, 1);
  expect_sleep([](const auto& idle) { idle(); });
}

TEST(Pool, ThreadsSleepWhileAPartLasts) {
  Pool pool(3);
  expect_sleep([&](const auto& idle) {
    Stages job(2, [&](Worker& w, int stage) {
      w.each(6, [&](std::int64_t part) {
        if (stage == 0 && part == 3) idle();
      });
      if (w.barrier()) w.each(1, [](std::int64_t) {});
    });
    pool.run(job);
  });
}

TEST(Pool, ThreadsSleepWhileAStepOfOneThreadLasts) {
  Pool pool(3);
  expect_sleep([&](const auto& idle) {
    Stages job(3, [](Worker& w, int) { w.each(6, [](std::int64_t) {}); });
    job.between = [&](int, int stage) {
      if (stage == 1) idle();
    };
    pool.run(job);
  });
}

TEST(Pool, ThreadsSleepWhileTheyWaitForAnEarlierPart) {
  Pool pool(3);
  std::atomic<std::uint32_t> order{0};
  expect_sleep([&](const auto& idle) {
    Stages job(1, [&](Worker& w, int) {
      w.each_in_order(9, [&](std::int64_t part) {
        if (part == 3) idle();
        w.await(order, static_cast<std::uint32_t>(part));
        w.advance(order, static_cast<std::uint32_t>(part) + 1);
      });
    });
    pool.run(job);
  });
  EXPECT_EQ(order, 9u);
}

// Steps for the caller's thread run on that thread, even if a different thread ended the previous stage.
TEST(Pool, StepsForTheCallerRunOnItsThread) {
  struct Alternating final : Job {
    int next(int thread) override {
      if (stage % 2 == 1) {
        if (thread != 0) return for_caller;
        by_caller += pthread_equal(pthread_self(), caller) != 0;
        ++stage;
      }
      return stage < 400 ? stage++ : end;
    }
    void share(Worker& w, int) override {
      w.each(2, [&](std::int64_t part) {  // the caller's stretch is short, so the caller arrives first
        if (part == 1) std::this_thread::sleep_for(std::chrono::microseconds(20));
      });
    }
    const pthread_t caller = pthread_self();
    int stage = 0, by_caller = 0;
  };
  Pool pool(3);
  Alternating job;
  pool.run(job);
  EXPECT_EQ(job.by_caller, 200);
}

// Each part waits for the previous part. A part must not be handed out while earlier parts are pending.
TEST(Pool, PartsInOrderWaitForFewOthers) {
  constexpr int threads = 3;
  constexpr std::uint32_t parts = 100;
  Pool pool(threads);
  std::atomic<std::uint32_t> done{0}, furthest{0};
  Stages job(1, [&](Worker& w, int) {
    w.each_in_order(parts, [&](std::int64_t p) {
      const auto part = static_cast<std::uint32_t>(p);
      const std::uint32_t ahead = part - done;
      for (std::uint32_t seen = furthest; seen < ahead && !furthest.compare_exchange_weak(seen, ahead);) {
      }
      w.await(done, part);
      w.advance(done, part + 1);
    });
  });
  pool.run(job);
  EXPECT_EQ(done, parts);
  EXPECT_LT(furthest, static_cast<std::uint32_t>(threads));
}

TEST(Pool, AThreadStartsWithTheSamePartsInEachStage) {
  constexpr int threads = 3;
  Pool pool(threads);
  std::atomic<int> here{0};
  Stages job(20, [&](Worker& w, int stage) {
    w.each(threads, [&](std::int64_t part) {
      EXPECT_EQ(part, w.thread());
      for (++here; here < threads * (stage + 1);) std::this_thread::yield();
    });
  });
  pool.run(job);
}

TEST(Pool, RunsAgainAfterSleeping) {
  Pool pool(3);
  for (int i = 0; i < 20; ++i) {
    if (i % 5 == 0) std::this_thread::sleep_for(milliseconds(5));
    run_phases(pool, 1);
  }
}

void count_part(void* count, int) {
  ++*static_cast<std::atomic<int>*>(count);
}

TEST(Pool, ConcurrentCallersAllRun) {
  std::atomic<int> counts[2] = {0, 0};
  const auto caller = [&](std::atomic<int>* count) {
    for (int i = 0; i < 200; ++i) run_on_pool(2, count_part, count);
  };
  std::thread other(caller, &counts[1]);
  caller(&counts[0]);
  other.join();
  EXPECT_EQ(counts[0], 400);
  EXPECT_EQ(counts[1], 400);
}

std::size_t threads_of_this_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

// A user's function may wait for a run. Meanwhile, other runs do not wait for the function's pool.
TEST(Pool, RunsInAUsersFunctionGetASeparatePool) {
  std::atomic<int> count{0};
  const auto nested = [&](bool on_another_thread) {
    Stages job(2, [](Worker& w, int) { w.each(2, [](std::int64_t) {}); });
    job.between = [&](int, int stage) {
      if (stage > 0) return;
      const InUserFunction may_run_programs;
      if (on_another_thread)
        std::thread([&] { run_on_pool(2, count_part, &count); }).join();
      else
        run_on_pool(2, count_part, &count);
    };
    run_on_pool(2, job);
  };
  nested(false), nested(true);
  const std::size_t threads = threads_of_this_process();
  for (int i = 0; i < 6; ++i) nested(i % 2 == 0);
  EXPECT_EQ(count, 16);
  EXPECT_EQ(threads_of_this_process(), threads);  // pools are reused
}

TEST(Pool, RunsWaitForAPoolAfterAUsersFunction) {
  constexpr int size = 4;  // no other test uses a pool of this size
  std::atomic<int> count{0};
  std::thread other;
  Stages job(1, [](Worker& w, int) { w.each(2, [](std::int64_t) {}); });
  job.between = [&](int, int stage) {
    if (stage > 0) return;
    { const InUserFunction is_over; }
    const std::size_t threads = threads_of_this_process();
    other = std::thread([&] { run_on_pool(size, count_part, &count); });
    std::this_thread::sleep_for(milliseconds(30));
    EXPECT_LE(threads_of_this_process(), threads + 1);  // the waiting thread is the only new thread
    EXPECT_EQ(count, 0);
  };
  run_on_pool(size, job);
  other.join();
  EXPECT_EQ(count, size);
}

TEST(Pool, SizeFollowsTheEnvironmentOrTheProcessors) {
  const char* variable = std::getenv("TG_THREADS");
  const std::string before = variable ? variable : "";
  for (const char* text : {"1", "3", "4096"}) {
    setenv("TG_THREADS", text, 1);
    EXPECT_EQ(default_threads(), std::stoi(text));
  }
  for (const char* text : {"", "0", "4097", "-1", "3x", "x", " 3", "99999999999"}) {
    setenv("TG_THREADS", text, 1);
    try {
      default_threads();
      ADD_FAILURE() << text;
    } catch (const tg::DeviceError& e) {
      EXPECT_EQ(std::string(e.what()),
                "[cpu] TG_THREADS is '" + std::string(text) + "': expected a number from 1 to 4096");
    }
  }
  unsetenv("TG_THREADS");
  cpu_set_t mine;
  ASSERT_EQ(sched_getaffinity(0, sizeof mine, &mine), 0);
  EXPECT_EQ(default_threads(), CPU_COUNT(&mine));
  if (variable) setenv("TG_THREADS", before.c_str(), 1);
}

TEST(Pool, ForkedProcessStartsItsOwnPools) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer does not support threads in a forked process";
#endif
  std::atomic<int> count{0};
  run_on_pool(3, count_part, &count);
  const pid_t child = fork();
  if (child == 0) {
    count = 0;
    for (int i = 0; i < 10; ++i) run_on_pool(3, count_part, &count);
    _exit(count == 30 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  run_on_pool(3, count_part, &count);
  EXPECT_EQ(count, 6);
}

}  // namespace
