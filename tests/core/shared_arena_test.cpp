// Tests CompileOptions::arena. Programs with the same arena share the memory of intermediate results.
#include <gtest/gtest.h>

#include <tilegrad/tilegrad.h>
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;

// Computes y = x·x·x with two GEMMs. The intermediate result x·x is [n, n].
struct Square {
  Graph graph;
  Tensor x, y;
  Program program;
  Square(std::int64_t n, const std::shared_ptr<SharedArena>& arena)
      : x(graph.input("x", {n, n})),
        y(matmul(matmul(x, x), x)),
        program(compile(graph, {y}, {.arena = arena})) {}
  void run(float value) {
    const std::vector<float> all(static_cast<std::size_t>(x.numel()), value);
    program.run({{x, all}});
  }
  // Returns the value of each element of y, n²·v³, if every element of x is v.
  void expect(float value) const {
    const float n = static_cast<float>(x.size(0));
    for (const float got : program.fetch(y).values<float>()) ASSERT_EQ(got, n * n * value * value * value);
  }
};

TEST(SharedArena, FitsTheLargestProgram) {
  const auto arena = std::make_shared<SharedArena>();
  Square large(128, arena);
  const std::size_t bytes = arena->bytes();
  EXPECT_GE(bytes, large.program.memory().arena);
  Square small(64, arena), middle(96, arena);
  EXPECT_EQ(arena->bytes(), bytes);
  for (int i = 1; i < 4; ++i) {
    large.run(static_cast<float>(i)), large.expect(static_cast<float>(i));
    small.run(2), small.expect(2);
    middle.run(1), middle.expect(1);
  }
}

TEST(SharedArena, GrowsIfAProgramNeedsMore) {
  const auto arena = std::make_shared<SharedArena>();
  Square small(64, arena);
  const std::size_t bytes = arena->bytes();
  Square large(128, arena);
  EXPECT_GT(arena->bytes(), bytes);
  small.run(2), small.expect(2);
  large.run(1), large.expect(1);
}

TEST(SharedArena, KeepsResultsUntilAnotherProgramRuns) {
  const auto arena = std::make_shared<SharedArena>();
  Square a(128, arena), b(64, arena);
  a.run(1);
  const Pending taken = a.program.fetch_later({a.y});
  b.run(3);
  EXPECT_NE(error_of([&] { a.program.fetch(a.y); }).find("another program with the same arena has run since"),
            std::string::npos);
  EXPECT_NE(error_of([&] { a.program.fetch_later({a.y}); }).find("same arena"), std::string::npos);
  EXPECT_EQ(taken.fetch(a.y).values<float>()[5], 128 * 128);
  b.expect(3);
  a.run(1), a.expect(1);
}

TEST(SharedArena, IsNotSharedWithAProgramThatRunsWithinAnother) {
  const auto arena = std::make_shared<SharedArena>();
  Square inner(64, arena);
  const CustomOp op = register_host_op({.name = "runs_inside", .forward = [&](auto, auto) { inner.run(1); }});
  Graph g;
  const Tensor x = g.input("x", {1});
  Program outer = compile(g, {op(x)}, {.arena = arena}), apart = compile(g, {op(x)});
  EXPECT_NE(error_of([&] {
              outer.run({{x, 1}});
            }).find("another program with the same arena is running"),
            std::string::npos);
  EXPECT_NO_THROW(apart.run({{x, 1}}));
  inner.run(2), inner.expect(2);
}

TEST(SharedArena, VerifyComparesItWithSeparateMemory) {
  const auto arena = std::make_shared<SharedArena>();
  Graph g;
  const Tensor x = g.input("x", {64, 64}), y = matmul(x * 2, x) + 1;
  Program program = compile(g, {y}, {.arena = arena, .verify = true});
  Square other(64, arena);
  other.run(1);
  program.run({{x, std::vector<float>(64 * 64, 1)}});
  EXPECT_EQ(program.fetch(y).values<float>()[7], 2 * 64 + 1);
}

}  // namespace
