// Tests assignments to parameters (core/compile/assignments.h). Some steps write their value directly to the
// parameter. Other values are copied. Some programs must assign an update.
#include "core/compile/assignments.h"

#include <gtest/gtest.h>

#include <random>

#include <tilegrad/tilegrad.h>
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using tg::testing::expect_error;

struct Assignments : ::testing::Test {
  Graph g;
  Parameter w{"w", Array(Shape{2, 2}, f32)}, v{"v", Array(Shape{2, 2}, f32)};
  Tensor x = g.input("x", {2, 2}), p = g.param(w);

  // For each assignment, returns whether a step writes directly to the parameter. Elementwise ops are not
  // fused, so each op is a step.
  std::vector<bool> directly(const std::vector<Tensor>& fetch, const std::vector<Assign>& assign) {
    const Outputs outputs = outputs_of(g, fetch, assign);
    std::vector<LoweredStep> steps = lower(g, outputs.all(), false);
    const std::vector<bool> answer = written_directly(g, steps, outputs, assign);
    const std::size_t before = steps.size();
    append_copies(g, steps, outputs, assign, answer);
    std::size_t copies = 0;
    for (std::size_t i = 0; i < assign.size(); ++i) {
      if (answer[i]) continue;
      const LoweredStep& copy = steps.at(before + copies++);
      EXPECT_EQ(copy.op, &copy_op);
      EXPECT_EQ(copy.in, std::vector<ValueId>{outputs.assigned[i]});
      EXPECT_TRUE(copy.out.empty());
      EXPECT_EQ(copy.target.value().key(), assign[i].target.key());
    }
    EXPECT_EQ(steps.size(), before + copies);
    return answer;
  }
  using Answer = std::vector<bool>;
};

TEST_F(Assignments, AResultWithoutOtherUsesIsWrittenDirectly) {
  EXPECT_EQ(directly({}, {{w, x + 1}}), Answer{true});
  EXPECT_EQ(directly({}, {{w, p * 2}}), Answer{true})
      << "its producer reads the old value element by element";
  EXPECT_EQ(directly({}, {{w, x + 1}, {v, p * 2}}), (Answer{false, true})) << "the old value is read later";
}

TEST_F(Assignments, ViewsInputsAndSharedResultsAreCopied) {
  const Tensor y = x + 1;
  EXPECT_EQ(directly({}, {{w, transpose(y, 0, 1)}}), Answer{false});
  EXPECT_EQ(directly({}, {{w, slice(concat({y, y}, 0), 0, 1, 3)}}), Answer{false});
  EXPECT_EQ(directly({}, {{w, x}}), Answer{false}) << "an input";
  EXPECT_EQ(directly({y}, {{w, y}}), Answer{false}) << "fetched too";
  EXPECT_EQ(directly({}, {{w, y}, {v, y}}), (Answer{false, false})) << "assigned twice";
}

TEST_F(Assignments, AnOldValueReadInADifferentOrderIsNotOverwritten) {
  EXPECT_EQ(directly({}, {{w, transpose(p, 0, 1) + p}}), Answer{false});
  EXPECT_EQ(directly({}, {{w, matmul(p, x)}}), Answer{false}) << "no kernel of matmul works in place";
  const Tensor y = p * 3;
  EXPECT_EQ(directly({}, {{w, x + 1}, {v, y}}), (Answer{true, true})) << "y is computed before w changes";
}

TEST_F(Assignments, OutputsAreCopiedBeforeTheirParameterChanges) {
  const Outputs none = outputs_of(g, {p, x}, {});
  EXPECT_EQ(none.fetched, (std::vector<ValueId>{p.id(), x.id()}));
  const Outputs copied = outputs_of(g, {transpose(p, 0, 1), x}, {{w, x + 1}, {v, p}});
  EXPECT_EQ(copied.all().size(), 4u);
  EXPECT_EQ(g.node_of(copied.fetched[0]).op, &copy_op);
  EXPECT_EQ(copied.fetched[1], x.id());
  EXPECT_EQ(g.node_of(copied.assigned[1]).op, &copy_op);
}

// Compares all pairs of parts.
TEST_F(Assignments, OverlappingPartsAreRefusedIfOneIsAssigned) {
  std::mt19937 random(1);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<unsigned>(n));
  };
  int refused = 0, accepted = 0;
  for (int round = 0; round < 1000; ++round) {
    const Parameter whole("w", Array({12}, f32));
    struct Part {
      std::int64_t first, count;
      Parameter p;
    };
    std::vector<Part> parts;
    for (std::int64_t n = 2 + below(3); n > 0; --n) {
      const std::int64_t first = below(12), count = below(std::min<std::int64_t>(12 - first, 5) + 1);
      parts.push_back({first, count, whole.part(first, count)});
    }
    if (below(4) == 0) parts.push_back({0, 12, whole});
    std::ranges::shuffle(parts, random);
    std::vector<Parameter> used;
    std::vector<Assign> assign;
    std::vector<bool> is_assigned;
    for (const Part& part : parts) {
      used.push_back(part.p);
      is_assigned.push_back(below(3) == 0);
      if (is_assigned.back()) assign.push_back({part.p, {}});
    }
    bool overlap = false;
    for (std::size_t i = 0; i < parts.size(); ++i)
      for (std::size_t k = 0; k < i; ++k) {
        const std::int64_t begin = std::max(parts[i].first, parts[k].first),
                           end = std::min(parts[i].first + parts[i].count, parts[k].first + parts[k].count);
        overlap = overlap || (begin < end && (is_assigned[i] || is_assigned[k]));
      }
    if (overlap)
      EXPECT_THROW(check_parts(used, assign), Error) << round;
    else
      EXPECT_NO_THROW(check_parts(used, assign)) << round;
    ++(overlap ? refused : accepted);
  }
  EXPECT_GT(refused, 200);
  EXPECT_GT(accepted, 200);
}

TEST_F(Assignments, AnUpdateComputedByAProgramMustBeAssigned) {
  Tensor y;
  {
    const Scope scope("h.3.cache");
    y = p + x;
    g.must_assign(w, y);
  }
  const Tensor reads = y * 2, other = x * 2;
  expect_error<Error>([&] { compile(g, {reads}); },
                      {"[compile] h.3.cache/add is the new value of w, which is not among the assignments",
                       "assignments_test.cpp"});
  expect_error<Error>([&] { compile(g, {reads}, {.assign = {{w, other}}}); }, {"new value of w"});
  compile(g, {reads}, {.assign = {{w, y}}});
  compile(g, {reads}, {.allow_unassigned = true});
  compile(g, {other});
  Graph h;
  expect_error<Error>([&] { h.must_assign(w, y); }, {"[must_assign]", "not a tensor of this graph"});
}

}  // namespace
