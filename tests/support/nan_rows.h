// Tests how row reductions propagate NaN and infinity, on every backend.
#pragma once

#include <cmath>
#include <limits>

#include "tests/support/op_testing.h"

namespace tg::testing {

// Computes the maximum, the minimum and twice the sum of each of four rows. The elementwise step before
// changes no number.
inline std::vector<Tensor> reductions_of_nan_rows(Graph& g, DType t) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN(),
                   inf = std::numeric_limits<double>::infinity();
  const Tensor x = g.constant(
      Array::of<double>({4, 4}, {1, nan, 2, 3, inf, 1, -inf, 0, -1, -2, -3, -4, -0., 0, -0., 0}).to(t));
  return {max(x * 1, {1}), min(x * 1, {1}), sum(x * 2, {1})};
}

inline void expect_nan_passed(const std::vector<Array>& got) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const Array& a : got) EXPECT_TRUE(std::isnan(a.at(0)));
  EXPECT_EQ(got[0].at(1), inf);
  EXPECT_EQ(got[1].at(1), -inf);
  EXPECT_TRUE(std::isnan(got[2].at(1)));
  EXPECT_EQ(got[0].at(2), -1);
  EXPECT_EQ(got[1].at(2), -4);
  EXPECT_EQ(got[2].at(2), -20);
  EXPECT_EQ(got[0].at(3), 0);
}

}  // namespace tg::testing
