// Gradients of small graphs against closed forms.
#include <gtest/gtest.h>

#include <cmath>

#include "tilegrad.h"

namespace {

using namespace tg;

TEST(Gradients, OfAPolynomialAreItsDerivative) {
  Graph g;
  const Tensor x = g.input("x", {3}, f64);
  const Tensor loss = sum(x * x * x + 2 * x);
  const Tensor z = gradients(loss, {x})[0];
  const auto values = eval({loss, z}, {{x, std::vector<double>{1, 2, 3}}});
  EXPECT_EQ(values[0].item<double>(), 36 + 12);
  EXPECT_EQ(values[1].values<double>(), (std::vector<double>{5, 14, 29}));
}

TEST(Gradients, FlowThroughViewsAndBroadcasts) {
  Graph g;
  const Tensor x = g.input("x", {2, 3}, f64), row = g.input("row", {3}, f64);
  const Tensor loss =
      sum(transpose(x, 0, 1).reshape({6}) * expand(row, {2, 3}).reshape({6}) * x.reshape({6}));
  const auto z = gradients(loss, {x, row});
  const auto values = eval({loss, z[0], z[1]}, {{x, std::vector<double>{1, 2, 3, 4, 5, 6}},
                                                {row, std::vector<double>{1, 10, 100}}});
  // transposed x flat: 1 4 2 5 3 6; row flat: 1 10 100 1 10 100; x flat: 1 2 3 4 5 6
  EXPECT_EQ(values[0].item<double>(),
            1 * 1 + 4 * 10 * 2 + 2 * 100 * 3 + 5 * 1 * 4 + 3 * 10 * 5 + 6 * 100 * 6);
  EXPECT_EQ(values[2].values<double>(), (std::vector<double>{1 * 1 + 5 * 4, 4 * 2 + 3 * 5, 2 * 3 + 6 * 6}));
}

TEST(Gradients, OfGradientsAreSecondDerivatives) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  const Tensor first = gradients(sum(exp(x) * x), {x})[0];
  const Tensor second = gradients(sum(first), {x})[0];
  const auto v = eval(second, {{x, std::vector<double>{0, 1}}}).values<double>();
  EXPECT_DOUBLE_EQ(v[0], 2);
  EXPECT_DOUBLE_EQ(v[1], 3 * std::exp(1.0));
}

TEST(Gradients, ThroughAnOpWithoutOneAreRefusedWithItsReason) {
  Graph g;
  const Tensor x = g.input("x", {2}, f64);
  EXPECT_THROW(gradients(sum(slice(x, 0, 0, 1)), {x}), GradientError);
}

}  // namespace
