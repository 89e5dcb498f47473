// Tests runs. Covers nested and mutually exclusive calls, waiting, lost ranks, shared memory, and the
// arguments of eval() and fetch().
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include <tilegrad/core/report/bad_node.h>
#include <tilegrad/tilegrad.h>
#include "core/base/one_user.h"
#include "core/base/spin.h"
#include "core/compile/budget.h"
#include "core/run/arena_use.h"
#include "core/run/ranks.h"
#include "core/run/saving.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;

TEST(Calls, ExcludeOneAnother) {
  std::atomic<bool> busy = false;
  {
    const OneUser first(busy, "feed", "it is in use");
    EXPECT_TRUE(busy);
    EXPECT_EQ(error_of([&] { const OneUser second(busy, "run", "it is in use"); }), "[run] it is in use");
    EXPECT_TRUE(busy) << "the first is still in it";
  }
  EXPECT_FALSE(busy);
  const OneUser again(busy, "run", "it is in use");
}

TEST(Calls, MayNestInOneThread) {
  std::atomic<std::thread::id> user = {};
  const auto in_another = [&] {
    std::string error;
    std::thread([&] {
      error = error_of([&] { const OneThread other(user, "engine", "two threads"); });
    }).join();
    return error;
  };
  {
    const OneThread outer(user, "engine", "two threads");
    {
      const OneThread inner(user, "engine", "two threads");
      EXPECT_EQ(in_another(), "[engine] two threads");
    }
    EXPECT_EQ(in_another(), "[engine] two threads") << "the outer call continues";
  }
  EXPECT_EQ(in_another(), "no error");
  EXPECT_EQ(user.load(), std::thread::id());
}

TEST(Calls, NestUpToALimit) {
  int depth = 0;
  std::vector<std::unique_ptr<Nested>> levels;
  for (int i = 0; i < Nested::most; ++i)
    levels.push_back(std::make_unique<Nested>(depth, "run", "without end"));
  EXPECT_EQ(depth, 32);
  EXPECT_EQ(error_of([&] { const Nested more(depth, "run", "without end"); }),
            "[run] without end: more than 32 calls contain one another");
  EXPECT_EQ(depth, 32);
  levels.pop_back();
  const Nested last(depth, "run", "without end");
  EXPECT_EQ(depth, 32);
}

TEST(Waiting, EndsWhenReadyOrWhenTheTimeIsOver) {
  using std::chrono::nanoseconds;
  for (const int ready_at : {1, 2, 31, 32, 33, 48}) {
    int calls = 0;
    EXPECT_TRUE(spin_until([&] { return ++calls == ready_at; }, std::chrono::hours(1)));
    EXPECT_EQ(calls, ready_at);
  }
  int calls = 0;
  EXPECT_FALSE(spin_until([&] { return ++calls == 0; }, nanoseconds(1)));
  EXPECT_EQ(calls, 32 + 16) << "some looks, and then the clock";
  calls = 0;
  EXPECT_FALSE(spin_until([&] { return ++calls == 2; }, nanoseconds(0)));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(spin_until([] { return true; }, nanoseconds(0)));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(spin_until([] { return false; }, std::chrono::milliseconds(2)));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(2));
}

TEST(Ranks, ListenersAreCalledOnceWhenOneIsLost) {
  OneRank ranks;
  std::string calls;
  const auto first = ranks.on_lost([&] { calls += "a"; });
  {
    const auto gone = ranks.on_lost([&] { calls += "b"; });
  }
  ranks.report_lost();
  EXPECT_EQ(calls, "a");
  ranks.report_lost();
  EXPECT_EQ(calls, "a");
  const auto late = ranks.on_lost([&] { calls += "c"; });
  EXPECT_EQ(calls, "ac");
}

TEST(Saving, TheClockCountsMilliseconds) {
  const std::int64_t begin = monotonic_ms();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const std::int64_t end = monotonic_ms();
  EXPECT_GE(end - begin, 19);
  EXPECT_LT(end - begin, 20000);
}

TEST(Arenas, FitTheLargestAndExpectedPrograms) {
  Backend& cpu = backend(Device::cpu());
  SharedArena arena(1000, 300);
  ArenaUse use(arena);
  EXPECT_EQ(arena.bytes(), 0u);
  EXPECT_EQ(use.missing(0), 0u);
  EXPECT_EQ(use.missing(1), 1000u);
  EXPECT_EQ(use.missing(1001), 1001u);
  EXPECT_EQ(use.least_scratch(), 300u);
  const auto first = use.results(cpu, Device::cpu(), 10, "results");
  EXPECT_EQ(arena.bytes(), 1000u);
  EXPECT_EQ(use.missing(1000), 0u);
  EXPECT_EQ(use.missing(1001), 1001u);
  EXPECT_EQ(use.results(cpu, Device::cpu(), 1000, "results"), first);
  EXPECT_NE(use.results(cpu, Device::cpu(), 1001, "results"), first);
  EXPECT_EQ(arena.bytes(), 1001u);
  use.scratch(cpu, Device::cpu(), 400, "scratch");
  EXPECT_EQ(use.least_scratch(), 400u);
  use.expect(900, 500);
  EXPECT_EQ(use.least_scratch(), 500u);
  EXPECT_EQ(use.missing(1002), 1002u);
  use.expect(2000, 100);
  EXPECT_EQ(use.least_scratch(), 500u);
  EXPECT_EQ(use.missing(1002), 2000u);
  use.scratch(cpu, Device::cpu(), 1, "scratch");
  EXPECT_EQ(arena.bytes(), 1001u + 500);
  EXPECT_NE(error_of([&] {
              use.results(cpu, Device::cuda(), 1, "results");
            }).find("[compile] the arena is on cpu, the program on cuda"),
            std::string::npos);
  int a = 0, b = 0;
  EXPECT_TRUE(use.begin(&a));
  EXPECT_TRUE(use.ran_last(&a));
  EXPECT_FALSE(use.begin(&b));
  EXPECT_TRUE(use.ran_last(&a) && !use.ran_last(&b));
  use.end();
  EXPECT_TRUE(use.begin(&b));
  EXPECT_TRUE(use.ran_last(&b));
}

// The peak of a program includes the scratch memory of other programs in the same arena.
TEST(Arenas, BudgetsCountTheScratchMemoryOfOthers) {
  Graph g;
  const Tensor x = g.input("x", {64, 64}), y = matmul(exp(x), x);
  const CompileOptions plain{.threads = 1};
  const MemoryReport m = compile(g, {y}, plain).memory();
  const std::size_t scratch = m.workspace + (1 << 20), peak = m.peak() + (1 << 20);
  const auto least = [&](std::size_t budget) -> std::size_t {
    try {
      compile(g, {y},
              {.threads = 1, .memory_budget = budget, .arena = std::make_shared<SharedArena>(0, scratch)});
    } catch (const BudgetTooSmall& e) {
      return e.least;
    }
    return 0;
  };
  EXPECT_EQ(least(peak), 0u);
  EXPECT_EQ(least(peak - 1), peak);
}

TEST(Programs, RefuseToFetchTensorsOfOtherGraphs) {
  Graph g, other;
  const Tensor x = g.input("x", {2}), y = x + 1, z = other.input("x", {2}), w = z + 1;
  ASSERT_EQ(y.id(), w.id());
  Program p = compile(g, {y});
  p.run({{x, std::vector<float>{1, 2}}});
  EXPECT_EQ(p.fetch(y).at(1), 3);
  const std::string lost =
      "[fetch] this tensor was not among the tensors given to compile(): its memory may have been reused";
  EXPECT_EQ(error_of([&] { p.fetch(w); }), lost);
  EXPECT_EQ(error_of([&] { p.fetch({}); }), lost);
  EXPECT_FALSE(p.reads(z));
  EXPECT_FALSE(p.reads(y));
  EXPECT_TRUE(p.reads(x));
  EXPECT_NE(error_of([&] {
              p.feed({z, std::vector<float>{1, 2}});
            }).find("not of the program's graph"),
            std::string::npos);
  EXPECT_NE(error_of([&] { p.choice(1); }).find("[choice] step 1 of 1"), std::string::npos);
  EXPECT_EQ(error_of([&] { p.choice(0); }), "no error");
  EXPECT_TRUE(&p.graph() != nullptr && p.graph() == g);
  EXPECT_EQ(std::vector<ValueId>(p.outputs().begin(), p.outputs().end()), std::vector<ValueId>{y.id()});
}

TEST(Programs, EvalIgnoresInputsThatAreNotRead) {
  Graph g;
  const Tensor x = g.input("x", {2}), unused = g.input("unused", {2}), y = x + 1;
  const std::vector<float> v{1, 2};
  EXPECT_EQ(eval(y, {{x, v}, {unused, v}}).at(1), 3);
  EXPECT_NE(error_of([&] { eval(y, {{x, v}, {y, v}}); }).find("is not an input"), std::string::npos);
  Graph other;
  EXPECT_NE(error_of([&] {
              eval(y, {{x, v}, {other.input("z", {2}), v}});
            }).find("not of the program's graph"),
            std::string::npos);
  EXPECT_TRUE(eval(std::vector<Tensor>{}).empty());
  const std::vector<Array> two = eval({y, y * 2}, {{x, v}});
  EXPECT_EQ(two[0].at(0), 2);
  EXPECT_EQ(two[1].at(1), 6);
}

TEST(Programs, RunsAreNumberedForRandomNumbers) {
  Graph g;
  const Tensor u = uniform(g, {4});
  Program p = compile(g, {u});
  const auto at = [&](std::uint64_t seed, std::int64_t step) {
    Program other = compile(g, {u});
    other.seed(seed), other.set_step(step);
    other.run();
    return other.fetch(u);
  };
  for (std::int64_t step = 0; step < 3; ++step) {
    p.run();
    EXPECT_TRUE(p.fetch(u).same_bits(at(0, step))) << step;
  }
  p.seed(9);
  p.run();
  EXPECT_TRUE(p.fetch(u).same_bits(at(9, 3)));
  p.set_step(std::numeric_limits<std::int64_t>::max());
  p.profile();
  p.run();
  EXPECT_TRUE(p.fetch(u).same_bits(at(9, std::numeric_limits<std::int64_t>::min())))
      << "the number after the last";
}

TEST(BadNodes, AreNamedWithTheIndexOfTheirFirstElement) {
  Graph g;
  const Tensor x = g.input("x", {2, 3, 4}), s = g.input("s", {});
  std::vector<float> values(24, 1);
  values[17] = -std::numeric_limits<float>::infinity(), values[20] = 0;
  EXPECT_EQ(first_bad_node(g, {{x, values}, {s, std::vector<float>{1}}}, 0, 0)
                .find("input made -infinity at [1, 1, 1] of f32 [2, 3, 4]"),
            0u);
  values[17] = 1;
  EXPECT_EQ(first_bad_node(g, {{x, values}, {s, std::vector<float>{std::nanf("")}}}, 0, 0)
                .find("input made NaN of f32 [] from finite numbers ("),
            0u);
}

}  // namespace
