// Tests programs and threads. Covers nested runs, concurrent runs, more threads than the system provides,
// fork(), and runs while the process exits.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include <tilegrad/tilegrad.h>
#include "tests/support/op_testing.h"

#if defined(__SANITIZE_THREAD__)
constexpr bool thread_sanitizer = true;  // if a process with threads forks, ThreadSanitizer ends it
#else
constexpr bool thread_sanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool needs_address_space = true;
#else
constexpr bool needs_address_space = false;
#endif

namespace {

using namespace tg;
using tg::testing::expect_error;

// The program is large enough that threads share its steps.
constexpr std::int64_t size = 1 << 18;

struct Doubling {
  explicit Doubling(int threads) : program(compile(g, {y}, {.threads = threads})) {}
  double run(double value) {
    program.run({{x, value}});
    return program.item<float>(y);
  }
  Graph g;
  Tensor x = g.input("x", {}), y = mean(expand(x, {size}) * 2);
  Program program;
};

// A host op that runs a separate program on `inner` threads, optionally from a different thread. This program
// contains another such op. The nesting has up to `depth` levels.
CustomOp running_op(int inner, int depth, bool elsewhere) {
  static int made = 0;
  const std::optional<CustomOp> deeper =
      depth > 1 ? std::optional(running_op(inner, depth - 1, elsewhere)) : std::nullopt;
  return register_host_op({.name = "running" + std::to_string(made++), .forward = [=](auto in, auto out) {
                             const auto run = [&] {
                               Graph g;
                               const Tensor x = g.input("x", {});
                               const Tensor y = mean(expand(deeper ? (*deeper)(x) : x, {size}) * 2);
                               out[0].set(0, eval(y, {{x, in[0].at(0)}}, {.threads = inner}).at(0));
                             };
                             elsewhere ? std::thread(run).join() : run();
                           }});
}

TEST(ProgramThreads, HostOpsRunPrograms) {
  for (const int outer : {1, 2, 3})
    for (const int inner : {1, 2, 3})
      for (const bool elsewhere : {false, true}) {
        Graph g;
        const Tensor x = g.input("x", {});
        const Tensor y =
            running_op(inner, 2, elsewhere)(mean(expand(x, {size}))) + mean(expand(x, {size}) * 3);
        Program p = compile(g, {y}, {.threads = outer});
        for (int round = 0; round < 3; ++round) {
          p.run({{x, round}});
          EXPECT_EQ(p.item<float>(y), 7 * round) << outer << " and " << inner << " threads";
        }
      }
}

TEST(ProgramThreads, ProgramsRunConcurrently) {
  std::atomic<int> wrong = 0;
  const auto run = [&](int threads) {
    Doubling d(threads);
    for (int n = 0; n < 30; ++n) wrong += d.run(n) != 2 * n;
  };
  std::vector<std::thread> all;
  for (const int threads : {1, 1, 2, 2, 2, 3}) all.emplace_back(run, threads);
  for (std::thread& t : all) t.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ProgramThreads, AProgramThatRunsItselfIsRefused) {
  for (const int threads : {1, 2}) {
    Program* self = nullptr;
    const CustomOp op = register_host_op(
        {.name = "itself" + std::to_string(threads), .forward = [&](auto, auto) { self->run(); }});
    Graph g;
    const Tensor x = g.input("x", {1});
    Program p = compile(g, {op(x)}, {.threads = threads});
    self = &p;
    expect_error<Error>(
        [&] {
          p.run({{x, 1}});
        },
        {"[run] this program is already running", "program_threads_test"});
    self = nullptr;
  }
}

TEST(ProgramThreads, MoreThanTheLimitAreRefused) {
  Graph g;
  const Tensor y = g.input("x", {1}) + 1;
  for (const int threads : {-1, 4097, 100000, std::numeric_limits<int>::max()})
    expect_error<DeviceError>(
        [&] { compile(g, {y}, {.threads = threads}); },
        {"[cpu] " + std::to_string(threads) + " threads requested: expected 0 to 4096"});
}

// Runs f in a child process. Returns the result of f, or -1 if the child had to be killed.
template <class F>
int in_child(F f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    int code = 99;
    try {
      code = f();
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ProgramThreads, AChildOfForkRunsOldAndNewPrograms) {
  if (thread_sanitizer) GTEST_SKIP();
  Doubling d(2);
  EXPECT_EQ(d.run(1), 2);
  EXPECT_EQ(in_child([&] {
              const bool old = d.run(2) == 4;
              Doubling fresh(2), wider(3);
              return old && fresh.run(3) == 6 && wider.run(4) == 8 ? 7 : 0;
            }),
            7);
  EXPECT_EQ(d.run(5), 10);
}

TEST(ProgramThreads, FailureToStartReportsTheThreadNumber) {
  if (needs_address_space) GTEST_SKIP();
  EXPECT_EQ(in_child([] {
              Doubling d(300), few(2);
              rlimit limit{};
              getrlimit(RLIMIT_AS, &limit);
              limit.rlim_cur = std::size_t{1} << 30;  // less than 300 stacks need
              setrlimit(RLIMIT_AS, &limit);
              try {
                d.run(1);
                return 0;
              } catch (const DeviceError& e) {
                const std::string what = e.what();
                std::fprintf(stderr, "%s\n", e.what());
                const bool told = what.find("[cpu] cannot start thread ") == 0 &&
                                  what.find(" of 300: ") != std::string::npos;
                return told && few.run(3) == 6 ? 7 : 1;
              }
            }),
            7);
}

// Tests the end of the process. Runs `prepare`, then calls exit().
void ends_well(void (*prepare)()) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        alarm(60);
        prepare();
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

TEST(ProgramThreadsDeathTest, TheProcessMayEndWhileAThreadRuns) {
  ends_well([] {
    static std::atomic<int> runs = 0;
    std::thread([] {
      auto* d = new Doubling(2);
      for (int n = 0;; ++n, ++runs) d->run(n);
    }).detach();
    while (runs < 20) std::this_thread::yield();
  });
}

TEST(ProgramThreadsDeathTest, StaticObjectsMayRunProgramsInTheirDestructors) {
  ends_well([] {
    static struct Late {
      Doubling* d = nullptr;
      ~Late() {
        if (d->run(4) != 8) std::abort();
        if (Doubling(3).run(5) != 10) std::abort();  // the destructor also compiles
      }
    } late;  // constructed before the first run, which creates a pool
    late.d = new Doubling(2);
    late.d->run(1);
  });
}

}  // namespace
