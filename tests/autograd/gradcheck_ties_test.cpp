// Tests derivatives at special points if quotients are exactly at a bound. Each bound belongs to one side.
#include <cmath>
#include <map>
#include <optional>

#include "autograd/gradcheck/quotients.h"
#include "tests/support/gradcheck_cases.h"
#include "tests/support/host_function.h"

namespace {

using namespace tg;
using namespace tg::gradcheck;
using namespace tg::testing;
using View = gradcheck::View;

constexpr double hs[] = {1e-3, 1e-4, 1e-5};  // steps of the special point 0

// Returns a number near `start` at which f is exactly `target`, if one exists.
std::optional<double> solved(double start, double target, const std::function<double(double)>& f) {
  double low = start, high = start;
  for (int i = 0; i < 100; ++i) {
    if (f(low) == target) return low;
    if (f(high) == target) return high;
    low = std::nextafter(low, -1e300), high = std::nextafter(high, 1e300);
  }
  return {};
}

// The quotients at 0 for each step, and the gradient.
struct Row {
  const char* name;
  double right[3] = {}, left[3] = {}, central[3] = {};
  double a = 0, at_0 = 0;
  double noise = 0;         // noise of the first step, instead of `at_0`
  bool is_central = false;  // the gradient is the first central quotient, not 0
  bool is_noise = false;    // the second step's noise is a tenth of the gradient
  bool is_decided = true, is_wrong = false, is_smooth = false;
};

// The values of a function that has these quotients for the cotangent r.
struct Made {
  std::map<double, double> values;
  double a = 0, at_0 = 0;
};
std::optional<Made> made(const Row& row, double r) {
  Made m{{}, row.a, row.at_0};
  if (row.noise > 0) {
    const auto noise = [&](double y) { return 16 * 0x1p-53 * std::abs(r * y) / hs[0]; };
    const auto y = solved(row.noise * hs[0] * 0x1p49 / std::abs(r), row.noise, noise);
    if (!y) return {};
    m.at_0 = *y;
  }
  if (row.is_noise) {
    const double noise = 16 * 0x1p-53 * std::abs(r * m.at_0) / hs[1];
    const auto a = solved(noise * 10, noise, [](double y) { return 0.1 * y; });
    if (!a) return {};
    m.a = *a;
  }
  for (int i = 0; i < 3; ++i) {
    const double h = hs[i];
    const auto side = [&](double slope) {
      return solved(slope * h / r, slope, [&](double y) { return r * y / h; });
    };
    const auto right = side(row.right[i]), left = side(row.left[i]),
               central = solved(-12 * h * row.central[i] / r, row.central[i],
                                [&](double y) { return r * (8 * 0. - y) / (12 * h); });
    if (!right || !left || !central) return {};
    m.values[h] = m.at_0 + *right, m.values[-h] = m.at_0 - *left;
    // If the difference for twice the step is eight times as large, the central quotient is 0.
    m.values[2 * h] = m.at_0 + (row.is_central ? 0 : 8 * *right + *central);
    m.values[-2 * h] = m.at_0 - (row.is_central ? 0 : 8 * *left);
    if (row.is_central && i == 0) m.a = r * (8 * *right) / (12 * h);
  }
  return m;
}

TEST(SpecialPoints, AreJudgedAtTheirBounds) {
  const Row rows[] = {
      {.name = "distance from the slope", .a = 1e-5, .is_smooth = true},
      {.name = "slopes on both sides", .right = {0.01}, .is_central = true, .is_smooth = true},
      {.name = "noise", .noise = 1e-3, .is_decided = false},
      {.name = "quotients of two steps", .central = {0.05, 0, 9}, .a = 1, .is_wrong = true},
      {.name = "bend of a smooth function",
       .right = {0, 0.1, 0},
       .central = {0, 0, 9},
       .a = 1,
       .is_wrong = true},
      {.name = "right slopes", .right = {-50, 11, 10}, .a = 5},
      {.name = "left slopes", .left = {-50, 11, 10}, .a = 5},
      {.name = "below a kink", .right = {20, 20, 20}, .a = -1},
      {.name = "above a kink", .right = {20, 20, 20}, .a = 21},
      {.name = "noise of a wrong slope", .at_0 = 1e9, .is_noise = true, .is_wrong = true}};
  static const Op pointwise{.name = "pointwise", .pointwise = true};
  const auto host = std::make_shared<HostFunction>();
  Made now;
  host->outputs = [&](const Point& x, DType) {
    const auto value = now.values.find(x[0][0]);
    return Point{{value == now.values.end() ? now.at_0 : value->second}};
  };
  host->gradients = [&](const Point& x, const Point&, DType) { return Point{{x[0][0] == 0 ? now.a : 0}}; };
  Case c = case_of(host, {{{1}}}, {{1}});
  c.op = &pointwise;
  const Harness h(c, View::contiguous, f64, {});
  for (const Row& row : rows) {
    Options o = f64_contiguous(false);
    std::optional<Made> m;
    while (!(m = made(row, h.draw_cotangents(o.seed)[0][0])) && o.seed < 1000) ++o.seed;
    ASSERT_TRUE(m) << row.name;
    now = *m;
    Result r;
    check_special(c, o, r);
    EXPECT_EQ(r.special, row.is_decided ? 7 : 4) << row.name;
    EXPECT_EQ(r.undecided, row.is_decided ? 0 : 3) << row.name;
    EXPECT_EQ(r.status, row.is_wrong ? Status::mismatch : Status::ok) << row.name;
    EXPECT_EQ(special_derivatives(c, o).at(0).is_smooth, row.is_smooth) << row.name;
  }
}

}  // namespace
