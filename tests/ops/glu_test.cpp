// Tests swiglu, with two tensors and with one packed tensor.
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

TEST(Swiglu, IsSiluOfTheGateTimesTheValue) {
  Graph g;
  const Given a = given(g, {4, 7}), b = given(g, {4, 7}, f64, View::contiguous, 2);
  const Tensor packed = concat({a.tensor, b.tensor}, -1);
  const auto y = run_checked({swiglu(a.tensor, b.tensor), swiglu(packed)}, {a.feed(), b.feed()});
  Vector expected;
  for (std::size_t i = 0; i < a.values.size(); ++i)
    expected.push_back(a.values[i] / (1 + std::exp(-a.values[i])) * b.values[i]);
  EXPECT_TRUE(close(doubles(y[0]), expected));
  EXPECT_TRUE(close(doubles(y[1]), expected));
  EXPECT_THROW(swiglu(a.tensor), ShapeError);
}

TEST(Swiglu, RunsAsOneStep) {
  Graph g;
  const Tensor x = g.input("x", {8, 32});
  EXPECT_EQ(compile(g, {swiglu(x)}).steps().size(), 1u);
}

}  // namespace
