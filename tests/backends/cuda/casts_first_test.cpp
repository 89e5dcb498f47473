// Tests that casts of parameters move to the start of a program (backends/cuda/schedule/casts_first.cpp).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <tilegrad/tilegrad.h>
#include "backends/cuda/schedule/scheduler.h"

namespace {

using namespace tg;
using namespace tg::cuda;

std::vector<std::string> names(const std::vector<LoweredStep>& steps) {
  std::vector<std::string> all;
  for (const LoweredStep& s : steps)
    all.push_back(s.op == &fused_op ? s.attrs.as<FusedAttrs>().text() + " of " + std::to_string(s.in[0])
                                    : s.op->name);
  return all;
}

TEST(CastsFirst, MovesCastsOfWholeParametersInTheirOrder) {
  Graph g;
  const Parameter a("a", Array({4, 4}, f32)), b("b", Array({4, 4}, f32));
  const Tensor x = g.input("x", {8, 4}, f32), p = g.param(a), q = g.param(b), first = cast(p, bf16),
               of_input = cast(x, bf16), product = matmul(of_input, first),
               part = cast(slice(q, 0, 0, 2), bf16), chain = cast(q, f16) * 2, second = cast(q, bf16),
               y = matmul(product, second);
  const std::vector<ValueId> outputs{y.id(), part.id(), chain.id()};
  std::vector<LoweredStep> steps = lower(g, outputs, true);
  const std::vector<std::string> before = names(steps);
  EXPECT_FALSE(casts_first(g, steps, 63));  // two casts of 32 bytes; larger results belong to other steps
  EXPECT_EQ(names(steps), before);
  EXPECT_TRUE(casts_first(g, steps, 64));
  const std::vector<std::string> after = names(steps);
  const auto of = [](const Tensor& t) { return "cast(in0):bf16 of " + std::to_string(t.id()); };
  ASSERT_EQ(after.size(), before.size());
  EXPECT_EQ(after[0], of(p));
  EXPECT_EQ(after[1], of(q));
  std::vector<std::string> others;
  for (const std::string& name : before)
    if (name != of(p) && name != of(q)) others.push_back(name);
  EXPECT_EQ(std::vector(after.begin() + 2, after.end()), others);
  EXPECT_FALSE(casts_first(g, steps, 64));
}

}  // namespace
