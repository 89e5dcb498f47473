// Tests derivatives at special points. Covers the points, the steps and each decision. Each decision is
// tested with several functions. Plain code computes the expected results.
#include "autograd/gradcheck/quotients.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/gradcheck_cases.h"
#include "tests/support/host_function.h"

namespace {

using namespace tg;
using namespace tg::gradcheck;
using namespace tg::testing;
using View = gradcheck::View;

constexpr double inf = std::numeric_limits<double>::infinity(), huge = 2e13;

// The checker treats pointwise ops differently from other ops.
const Op pointwise{.name = "pointwise", .pointwise = true}, other{.name = "other"};

// ---- Points

struct PlainPoint {
  Point x;
  std::size_t only = 99;  // index of the only special input; 99: all inputs are special
};

Values in_turn(std::size_t n, Values values) {
  Values v;
  for (std::size_t k = 0; k < n; ++k) v.push_back(values[k % values.size()]);
  return v;
}

std::vector<PlainPoint> plain_points(const Case& c, const Point& drawn) {
  std::vector<PlainPoint> all{{drawn}, {drawn}};
  for (std::size_t l = 0; l < c.inputs.size(); ++l) {
    const SampleInput& in = c.inputs[l];
    const std::size_t n = drawn[l].size();
    if (in.fill.kind == Fill::index || !in.values.empty() || n == 0) continue;
    const bool is_positive = in.fill.kind == Fill::uniform && in.fill.low >= 0,
               from_one = in.fill.kind == Fill::uniform || in.fill.kind == Fill::off_zero;
    all[0].x[l] = in_turn(n, is_positive ? Values{0, 1, 0, 0.5, 1} : Values{0, 1, 0, -1, 1});
    all[1].x[l] = in_turn(n, {from_one ? 1. : 0.});
    const auto add = [&](Values v) {
      all.push_back({drawn, l});
      all.back().x[l] = std::move(v);
    };
    Values zero = drawn[l];
    zero[0] = 0;
    add(zero);
    add(in_turn(n, {huge, 1, huge / 2}));
    if (!is_positive) add(in_turn(n, {-huge, 1, -huge / 2}));
    for (const double sign : is_positive ? Values{1} : Values{1, -1}) {
      Values v = drawn[l];
      for (std::size_t k = 0; k < n; ++k)
        if (c.op->pointwise || k % 3 == 0) v[k] = sign * inf;
      add(v);
    }
  }
  return all;
}

Values plain_steps(double at) {
  Values steps;
  if (std::abs(at) >= 1e13) steps = {0x1p-4, 0x1p-5};
  for (const double h : {1e-3, 1e-4, 1e-5}) steps.push_back(h * std::max(1.0, std::abs(at)));
  return steps;
}

// f is 0 everywhere. A gradient of 0 agrees with the first quotient. A gradient of 1 agrees with no quotient.
TEST(SpecialPoints, AreVisitedInTheirOrderWithTheirSteps) {
  struct Row {
    std::vector<SampleInput> inputs;
    bool fast;
  };
  const Row rows[] = {{{{{1}}}, false},
                      {{{{5}}}, true},
                      {{{{5}, {Fill::uniform, 0, 2}}}, true},
                      {{{{3}, {Fill::uniform, -1, 2}}}, false},
                      {{{{3}, {Fill::off_zero, 0.5, 2}}}, false},
                      {{{{7}}, {{2}, {Fill::index, 0, 4}}, {{2}, {Fill::uniform, 0.25, 2}}}, true},
                      {{{{40}}}, false},
                      {{{{2}}, {{2}, {}, {}, {3, 4}}, {{0}}}, false}};
  for (const Row& row : rows)
    for (const Op* op : {&pointwise, &other})
      for (const double slope : {0., 1.}) {
        const auto host = std::make_shared<HostFunction>();
        host->outputs = [](const Point&, DType) { return Point{{0}}; };
        host->gradients = [slope, &row](const Point& x, const Point&, DType) {
          Point z;
          for (std::size_t l = 0; l < x.size(); ++l)
            if (row.inputs[l].fill.kind != Fill::index) z.emplace_back(x[l].size(), slope);
          return z;
        };
        Case c = case_of(host, row.inputs, {{1}});
        c.op = op;
        Options o = f64_contiguous(row.fast);
        o.seed = 3;
        const Point drawn = Harness(c, View::contiguous, f64, {}).draw(3);
        std::vector<Point> expected;
        std::int64_t elements = 0;
        for (const PlainPoint& p : plain_points(c, drawn)) {
          expected.push_back(p.x);  // from the outputs
          expected.push_back(p.x);  // from the gradients
          for (std::size_t l = 0; l < p.x.size(); ++l) {
            const std::size_t n = p.x[l].size(), most = std::min<std::size_t>(n, row.fast ? 4 : 32);
            if (c.inputs[l].fill.kind == Fill::index || (p.only != 99 && p.only != l)) continue;
            for (std::size_t i = 0; i < most; ++i, ++elements) {
              const std::size_t k = most == n ? i : i * (n - 1) / (most - 1);
              const double x = p.x[l][k], at = std::isfinite(x) ? x : std::copysign(1e6, x);
              const Values steps = plain_steps(at);
              for (std::size_t s = 0; s < (slope == 0 ? 1 : steps.size()); ++s)
                for (const double t : {-2., -1., 0., 1., 2.}) {
                  Point moved = p.x;
                  moved[l][k] = at + t * steps[s];
                  expected.push_back(moved);
                }
            }
          }
        }
        host->seen.clear();
        Result r;
        check_special(c, o, r);
        ASSERT_EQ(host->seen.size(), expected.size()) << row.inputs[0].shape.text() << " " << op->name;
        for (std::size_t i = 0; i < expected.size(); ++i)
          ASSERT_EQ(host->seen[i], expected[i])
              << row.inputs[0].shape.text() << " " << op->name << " call " << i;
        EXPECT_EQ(r.special + r.undecided, elements);
        EXPECT_EQ(r.status, slope == 0 ? Status::ok : Status::mismatch);
        EXPECT_EQ(r.checked, 0);
        EXPECT_EQ(special_derivatives(c, o).size(), static_cast<std::size_t>(elements));
      }
}

// If the function is not finite at a point, nothing is compared there. If it is not finite at a neighbor,
// this step is skipped.
TEST(SpecialPoints, NonFiniteNeighboursAreSkipped) {
  for (const double bad : {inf, -inf, std::nan("")}) {
    Case c = case_of(
        HostFunction::of_elements([=](double x) { return x > 5e5 ? bad : 0; }, [](double) { return 0; }),
        {{{1}}}, {{1}});
    c.op = &pointwise;
    Result r;
    check_special(c, f64_contiguous(false), r);
    EXPECT_EQ(r.status, Status::ok);
    EXPECT_EQ(r.special, 3 + 2);  // 0 three times, the huge point, and the infinite negative point
    EXPECT_EQ(r.undecided, 2);
  }
  // Derivatives at these points are still listed with the values of the gradient.
  Case two = case_of(HostFunction::of_elements([](double x) { return x > 5e5 ? inf : 0; },
                                               [](double x) { return x > 5e5 ? (x > huge / 2 ? 3 : 5) : 0; }),
                     {{{2}}}, {{2}});
  two.op = &other;
  const Values r = Harness(two, View::contiguous, f64, {}).draw_cotangents(0)[0];
  const auto all = special_derivatives(two, f64_contiguous(false));
  ASSERT_EQ(all.size(), 14u);
  EXPECT_EQ(all[6].value, 3 * r[0]);   // huge
  EXPECT_EQ(all[7].value, 0);          // 1
  EXPECT_EQ(all[10].value, 3 * r[0]);  // infinite
  EXPECT_FALSE(all[6].is_smooth);
  // The same happens if the function is not finite at one point of a quotient.
  for (const double at : {-2., -1., 1., 2.}) {
    Case c = case_of(HostFunction::of_elements(
                         [=](double x) { return x == at * 1e-3   ? inf
                                                : x == at * 1e-4 ? std::nan("")
                                                                 : 0; },
                         [](double x) { return x == 0 ? 1 : 0; }),
                     {{{1}}}, {{1}});
    c.op = &pointwise;
    Result r;
    check_special(c, f64_contiguous(false), r);
    EXPECT_EQ(r.undecided, 3) << "one step does not decide";
    EXPECT_EQ(r.special, 4);
  }
}

// ---- Decisions at x = 0

struct Sides {
  double central = 0, left = 0, right = 0;
};

// A function of one number. At 0, it has these slopes for each step. Its gradient at 0 is a.
struct Crafted {
  Sides steps[3];
  double a = 0, at_0 = 0;
  double operator()(double x) const {
    const double hs[] = {1e-3, 1e-4, 1e-5};
    for (int i = 0; i < 3; ++i) {
      const double h = hs[i];
      const Sides& s = steps[i];
      const double p = s.right * h, m = -s.left * h;
      if (x == h) return at_0 + p;
      if (x == -h) return at_0 + m;
      // 8·(p − m) − far = 12·h·central
      const double far = 8 * (p - m) - 12 * h * s.central;
      if (x == 2 * h) return at_0 + far / 2;
      if (x == -2 * h) return at_0 - far / 2;
    }
    return at_0;
  }
  Crafted times(double factor) const {
    Crafted c = *this;
    for (Sides& s : c.steps) s.central *= factor, s.left *= factor, s.right *= factor;
    c.a *= factor, c.at_0 *= factor;
    return c;
  }
};

enum class Verdict { agrees, wrong, kink, undecided };
struct Decision {
  Verdict verdict = Verdict::undecided;
  bool is_smooth = false;
  double ratio = 0, numeric = 0, h = 0;
};

// The function has three outputs, and each output is a share of it. The shares add up to 1, and their
// magnitudes add up to 2.
constexpr double shares[] = {0.75, -0.5, 0.75}, sizes = 2;

// Follows the section "Special points" in docs/gradcheck-method.md.
Decision decide(const Crafted& c, bool is_pointwise) {
  Decision d;
  const double hs[] = {1e-3, 1e-4, 1e-5}, a = c.a;
  const auto noise = [&](int i) { return 16 * 0x1p-53 * std::abs(c.at_0) * sizes / hs[i]; };
  const auto bend = [&](int i) { return std::abs(c.steps[i].right - c.steps[i].left) * sizes; };
  for (int i = 0; i < 3; ++i) {
    const double apart = std::abs(a - c.steps[i].central),
                 allowed = 1e-5 * std::max({1.0, std::abs(a), std::abs(c.steps[i].central)}) + noise(i);
    if (noise(i) >= 1e-3 * std::max(1.0, std::abs(a)) || apart > allowed) continue;
    return {Verdict::agrees, bend(i) <= 0.01 * std::max(1.0, std::abs(a)), apart / allowed,
            c.steps[i].central, hs[i]};
  }
  for (int i = 0; i < 2; ++i) {
    const Sides &s = c.steps[i], &t = c.steps[i + 1];
    const double apart = std::abs(a - t.central), open = std::abs(t.right - t.left);
    const bool smooth = std::abs(s.central - t.central) <= 0.05 * apart && bend(i + 1) <= 0.1 * apart,
               kink = std::abs(s.right - t.right) <= 0.1 * open && std::abs(s.left - t.left) <= 0.1 * open;
    if (!smooth && !(kink && is_pointwise)) continue;
    if (noise(i + 1) > 0.1 * apart) continue;
    const bool is_between =
        std::min(t.left, t.right) - 0.05 * open <= a && a <= std::max(t.left, t.right) + 0.05 * open;
    return {!smooth && is_between ? Verdict::kink : Verdict::wrong, false, 10, t.central, 1e-5};
  }
  return d;
}

struct Family {
  const char* name;
  std::function<Crafted(double t)> of;
  double low, high;
  int changes;  // number of verdict changes for a pointwise op in this range
};

TEST(SpecialPoints, AreJudgedAsByPlainCode) {
  const auto same = [](Sides s, double a, double at_0 = 0) { return Crafted{{s, s, s}, a, at_0}; };
  const Family families[] = {{"distance from the slope",
                              [&](double t) {
                                return same({2 + 2e-5 * t, 2, 2}, 2);
                              },
                              0.5, 2, 1},
                             {"distance from a larger slope",
                              [&](double t) {
                                return same({-6 - 6e-5 * t, -6, -6}, -6);
                              },
                              0.5, 2, 1},
                             {"distance from a small slope",
                              [&](double t) {
                                return same({0.5 + 1e-5 * t, 0.5, 0.5}, 0.5);
                              },
                              0.5, 2, 1},
                             {"slopes on both sides",
                              [&](double t) {
                                return same({0.5, 0.5, 0.5 + 0.005 * t}, 0.5);
                              },
                              0.5, 2, 1},
                             {"slopes on both sides of a larger slope",
                              [&](double t) {
                                return same({3, 3 + 0.015 * t, 3}, 3);
                              },
                              0.5, 2, 1},
                             {"noise", [&](double t) { return same({}, 0, 2.8e8 * t); }, 0.5, 2, 1},
                             {"quotients of two steps",
                              [](double t) {
                                return Crafted{{{0.05 * t, 0, 0}, {}, {}}, 1};
                              },
                              0.5, 2, 0},
                             {"quotients of the last two steps",
                              [](double t) {
                                return Crafted{{{9, 0, 0}, {0.05 * t, 0.5, -0.5}, {}}, 1};
                              },
                              0.5, 2, 1},
                             {"a bend of a smooth function",
                              [](double t) {
                                return Crafted{{{9, 9, 0}, {0, 5, 0}, {0, 0.05 * t, 0}}, 1};
                              },
                              0.5, 2, 1},
                             {"right slopes that differ",
                              [](double t) {
                                return Crafted{{{}, {9, 0, 1 + 0.1 * t}, {0, 0, 1}}, 0.5};
                              },
                              0.5, 2, 1},
                             {"left slopes that differ",
                              [](double t) {
                                return Crafted{{{}, {9, 1 - 0.1 * t, 0}, {0, 1, 0}}, 0.5};
                              },
                              0.5, 2, 1},
                             {"above a kink",
                              [&](double t) {
                                return same({0.5, 0, 1}, 1 + 0.05 * t);
                              },
                              0.5, 2, 1},
                             {"below a kink",
                              [&](double t) {
                                return same({0.5, 1, 0}, -0.05 * t);
                              },
                              0.5, 2, 1},
                             {"below a kink that falls",
                              [&](double t) {
                                return same({0.5, 0, 1}, -0.05 * t);
                              },
                              0.5, 2, 1},
                             {"above a kink that falls",
                              [&](double t) {
                                return same({0.5, 1, 0}, 1 + 0.05 * t);
                              },
                              0.5, 2, 1},
                             {"noise of a wrong slope",  // it hides the third step first, then the second
                              [&](double t) {
                                Crafted c = same({}, 1, 2.8e8 * t);
                                c.steps[0].central = 9;
                                return c;
                              },
                              0.5, 20, 1},
                             {"a later step that agrees between two slopes",
                              [](double t) {
                                return Crafted{{{9, 0, 1}, {0.5, 0, 1}, {0.5, 0, 1}}, 0.5 + 1e-5 * t};
                              },
                              0.5, 2, 1},
                             {"above a kink between slopes of one sign",
                              [&](double t) {
                                return same({2, 1, 3}, 3 + 0.1 * t);
                              },
                              0.5, 2, 1},
                             {"between the slopes of a smooth function",
                              [&](double t) {
                                return same({0, 0.98, 1.02}, 0.98 + 0.02 * t);
                              },
                              0.5, 2, 0}};
  const auto crafted = std::make_shared<Crafted>();
  const auto host = std::make_shared<HostFunction>();
  Case c = case_of(host, {{{1}}}, {{2}, {1}});
  const Options o = f64_contiguous(false);
  const Point r = Harness(c, View::contiguous, f64, {}).draw_cotangents(0);
  host->outputs = [=](const Point& x, DType) {
    const double y = (*crafted)(x[0][0]);
    return Point{{shares[0] * y / r[0][0], shares[1] * y / r[0][1]}, {shares[2] * y / r[1][0]}};
  };
  host->gradients = [=](const Point& x, const Point& cotangents, DType) {
    return Point{{x[0][0] == 0 ? crafted->a * (cotangents[0][0] / r[0][0]) : 0}};
  };
  for (const double factor : {1., 3.})
    for (const Family& f : families) {
      for (const bool is_pointwise : {true, false}) {
        c.op = is_pointwise ? &pointwise : &other;
        int changes = 0, number = 0;
        Decision last;
        double before = 0;
        const auto compare = [&](double t) {
          *crafted = f.of(t).times(factor);
          const Decision d = decide(*crafted, is_pointwise);
          const std::string what = f.name + (" at " + std::to_string(t)) + ", times " +
                                   std::to_string(factor) + (is_pointwise ? "" : " of another op");
          const double relative = std::abs(crafted->a - d.numeric) / std::max(1.0, std::abs(d.numeric));
          Result result;
          check_special(c, o, result);
          const bool is_decided = d.verdict != Verdict::undecided;
          EXPECT_EQ(result.special, 4 + (is_decided ? 3 : 0)) << what;  // the point 0 occurs three times
          EXPECT_EQ(result.undecided, is_decided ? 0 : 3) << what;
          EXPECT_EQ(result.status, d.verdict == Verdict::wrong ? Status::mismatch : Status::ok) << what;
          if (d.verdict == Verdict::wrong) {
            EXPECT_NEAR(result.ratio, 10, 1e-6) << what;
            EXPECT_NEAR(result.worst.numeric, d.numeric, 1e-6) << what;
            EXPECT_EQ(result.worst.analytic, crafted->a) << what;
            EXPECT_NEAR(result.max_rel, relative, 1e-6) << what;
            EXPECT_EQ(result.worst.h, d.h) << what;
            EXPECT_EQ(result.worst.where,
                      "first derivative at a special point (zeros and ties), input 0 [0]");
          } else if (d.verdict == Verdict::agrees && d.ratio > 1e-6) {
            EXPECT_NEAR(result.ratio, d.ratio, 2e-3 * d.ratio) << what;
            EXPECT_NEAR(result.max_rel, relative, 2e-3 * relative) << what;
            EXPECT_EQ(result.worst.h, d.h) << what;
          }
          const auto all = special_derivatives(c, o);
          ASSERT_EQ(all.size(), 7u);
          for (const std::size_t i : {0u, 1u, 2u}) {
            EXPECT_EQ(all[i].value, crafted->a) << what;
            EXPECT_EQ(all[i].is_smooth, d.is_smooth) << what;
          }
          for (const std::size_t i : {3u, 4u, 5u, 6u}) EXPECT_EQ(all[i].value, 0) << what;
        };
        for (double t = f.low; t <= f.high; t *= 1.004, ++number) {
          const Decision now = decide(f.of(t).times(factor), is_pointwise);
          if (number > 0 &&
              (now.verdict != last.verdict || now.is_smooth != last.is_smooth || now.h != last.h)) {
            ++changes;
            compare(before);
            compare(t);
          } else if (number % 60 == 0) {
            compare(t);
          }
          last = now, before = t;
        }
        if (is_pointwise && factor == 1) {
          EXPECT_GE(changes, f.changes) << f.name;
        }
      }
    }
}

// If all values are 0, the bound depends only on the derivative.
TEST(SpecialPoints, AFunctionThatIsZeroAddsNoNoise) {
  Case c = case_of(HostFunction::of_elements([](double) { return 0; }, [](double) { return 5e-6; }), {{{2}}},
                   {{2}});
  c.op = &other;
  const Options o = f64_contiguous(false);
  double largest = 0;
  for (const SpecialDerivative& d : special_derivatives(c, o)) largest = std::max(largest, std::abs(d.value));
  Result r;
  check_special(c, o, r);
  EXPECT_DOUBLE_EQ(r.ratio, largest / 1e-5);
}

// If a gradient is not finite but a quotient is finite, the gradient is wrong.
TEST(SpecialPoints, NonFiniteGradientOfAFiniteFunctionIsWrong) {
  for (const double bad : {inf, std::nan("")}) {
    Case c = case_of(
        HostFunction::of_elements([](double) { return 0; }, [=](double x) { return x == 0 ? bad : 0; }),
        {{{1}}}, {{1}});
    c.op = &other;
    Result r;
    check_special(c, f64_contiguous(false), r);
    EXPECT_EQ(r.status, Status::non_finite);
    EXPECT_EQ(r.special, 7);
    const auto all = special_derivatives(c, f64_contiguous(false));
    ASSERT_EQ(all.size(), 7u);
    for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(all[i].is_smooth, i >= 3) << i;
    // If the function is finite only at 0, no quotient is usable.
    Case alone = case_of(
        HostFunction::of_elements([](double x) { return x == 0 ? 0 : inf; }, [=](double) { return bad; }),
        {{{1}}}, {{1}});
    alone.op = &other;
    Result none;
    check_special(alone, f64_contiguous(false), none);
    EXPECT_EQ(none.status, Status::ok);
    EXPECT_EQ(none.undecided, 7);
  }
}

// At huge numbers, pointwise ops are always decided. Other ops with equal huge numbers are decided only
// within a distance that rounding hides.
TEST(SpecialPoints, HugeNumbersDecideForPointwiseOpsOnly) {
  for (const Op* op : {&pointwise, &other}) {
    Case c = case_of(HostFunction::of_elements([](double) { return 0; },
                                               [](double x) { return std::abs(x) == huge ? 1 : 0; }),
                     {{{1}}}, {{1}});
    c.op = op;
    Result r;
    check_special(c, f64_contiguous(false), r);
    EXPECT_EQ(r.status, op == &pointwise ? Status::mismatch : Status::ok);
    EXPECT_EQ(r.undecided, op == &pointwise ? 0 : 2);
    if (op == &pointwise) {
      EXPECT_EQ(r.worst.where, "first derivative at a special point (huge numbers in input 0), input 0 [0]");
    }
  }
}

// Near a huge number, the function is linear only within 0.07. So only the step 1/32 shows the slope there.
TEST(SpecialPoints, HugeNumbersHaveStepsBelowOne) {
  Case c = case_of(HostFunction::of_elements([](double x) { return std::clamp(x - huge, -0.07, 0.07); },
                                             [](double x) { return x == huge ? 1 : 0; }),
                   {{{1}}}, {{1}});
  c.op = &pointwise;
  Result r;
  check_special(c, f64_contiguous(false), r);
  EXPECT_EQ(r.status, Status::ok) << r.worst.where;
  EXPECT_EQ(r.special, 7);
}

// With --quick, an op with more than eight samples is checked with every fourth sample. The seed selects the
// samples.
TEST(SpecialPoints, QuickChecksEveryFourthSampleOfMany) {
  for (const int count : {8, 9}) {
    Op op{.name = "many"};
    op.samples = [count] {
      std::vector<Sample> all;
      for (int i = 0; i < count; ++i) all.push_back({"sample " + std::to_string(i), {}});
      return all;
    };
    for (int i = 0; i < count; ++i)
      for (std::uint64_t seed = 0; seed < 9; ++seed)
        for (const bool fast : {false, true}) {
          Options o;
          o.fast = fast, o.seed = seed;
          Case c{"many", "sample " + std::to_string(i), {}, {}};
          EXPECT_FALSE(has_special_points(c, o));
          c.op = &other;
          EXPECT_FALSE(has_special_points(c, o)) << "without samples";
          c.op = &op;
          EXPECT_EQ(has_special_points(c, o),
                    !fast || count == 8 || static_cast<std::uint64_t>(i) % 4 == seed % 4);
        }
  }
}

double derivative_of_cube(int order, double x) {
  return order == 0 ? x * x * x : order == 1 ? 3 * x * x : order == 2 ? 6 * x : order == 3 ? 6 : 0;
}

// The op has an attribute `order`. The derivative with respect to the first input is the same op with the
// next order. A second input may change the result.
struct OrderAttrs {
  int order;
  void fields(auto&& field) const { field("order", order); }
};
struct OrderOp {
  std::function<double(int order, double x, double w)> f;
  Op op;
  Case c;
  OrderOp(std::vector<SampleInput> inputs, std::function<double(int, double, double)> function)
      : f(std::move(function)) {
    op = {.name = "of_order",
          .infer =
              [](std::span<const Operand> in, const Attrs&) {
                return std::vector<OutSpec>{{in[0].dtype, row_major(in[0].shape())}};
              },
          .vjp =
              [this](const Backprop& g) {
                Tensors z(g.in.size());
                z[0] = g.z[0] * recorded(g.in, g.attrs.as<OrderAttrs>().order + 1);
                return z;
              },
          .host =
              [this](std::span<const HostView> in, std::span<const HostView> out, const Attrs& a) {
                for (std::int64_t i = 0; i < in[0].numel(); ++i)
                  out[0].set(i, f(a.as<OrderAttrs>().order, in[0].at(i), in.size() > 1 ? in[1].at(i) : 0));
              }};
    c = {"of_order", "one", std::move(inputs), [this](DType, Device) {
           return Callable{{}, [this](std::span<const Tensor> x) { return Tensors{recorded(x, 0)}; }};
         }};
    c.op = &other;
  }
  OrderOp(const OrderOp&) = delete;

 private:
  Tensor recorded(std::span<const Tensor> in, int order) const {
    return in[0].graph().record(op, in, OrderAttrs{order}, std::source_location::current())[0];
  }
};

// The second derivative is compared at the same points as the first.
TEST(SpecialPoints, SecondDerivativesAreComparedAtTheSamePoints) {
  bool is_off = false;  // the derivative is off at 0
  OrderOp cube({{{1}}}, [&](int order, double x, double) {
    return derivative_of_cube(order, x) + (is_off && order == 2 && x == 0);
  });
  const Options o = f64_contiguous(false);
  Result right;
  check_special(cube.c, o, right);
  EXPECT_EQ(right.status, Status::ok) << right.worst.where;
  EXPECT_EQ(right.special, 2 * 5);
  EXPECT_EQ(right.undecided, 2 * 2);  // the points at ±∞
  is_off = true;
  Result wrong;
  check_special(cube.c, o, wrong);
  EXPECT_EQ(wrong.status, Status::mismatch);
  EXPECT_EQ(wrong.worst.where.substr(0, 42), "second derivative at a special point (zero")
      << wrong.worst.where;
  static const Op first_only{.name = "first_only", .first_order_only = true};
  cube.c.op = &first_only;
  Result first;
  check_special(cube.c, o, first);
  EXPECT_EQ(first.status, Status::ok);
  EXPECT_EQ(first.special + first.undecided, 7);
  EXPECT_EQ(special_derivatives(cube.c, o).size(), 7u);
}

// Cotangents are inputs of the second derivative. They keep their random values.
TEST(SpecialPoints, DerivativesMatchPlainCode) {
  const std::pair<Fill, Values> rows[] = {{{}, {0, 0, 0, huge, -huge, inf, -inf}},
                                          {{Fill::uniform, 0.25, 2}, {0, 1, 0, huge, inf}}};
  for (const auto& [fill, xs] : rows) {
    const OrderOp cube({{{1}, fill}},
                       [](int order, double x, double) { return derivative_of_cube(order, x); });
    Options o = f64_contiguous(false);
    o.seed = 3;
    const double r = Harness(cube.c, View::contiguous, f64, {}).draw_cotangents(3)[0][0];
    const Harness second(derivative(cube.c), View::contiguous, f64, {});
    const double r_as_input = second.draw(3)[1][0], s = second.draw_cotangents(3)[0][0];
    const auto all = special_derivatives(cube.c, o);
    ASSERT_EQ(all.size(), 2 * xs.size());
    for (std::size_t i = 0; i < xs.size(); ++i) {
      EXPECT_DOUBLE_EQ(all[i].value, r * derivative_of_cube(1, xs[i])) << i;
      EXPECT_DOUBLE_EQ(all[xs.size() + i].value, r_as_input * s * derivative_of_cube(2, xs[i])) << i;
    }
  }
}

// If the gradient is not finite at a point of the second derivative, the first derivative is compared there.
// The comparison is not counted again.
TEST(SpecialPoints, NonFiniteGradientIsComparedWithTheFunction) {
  double special = 99;  // the gradient at 0 is infinite for this w
  OrderOp cube({{{1}}, {{1}}}, [&](int order, double x, double w) {
    return order == 1 && x == 0 && w == special ? inf : derivative_of_cube(order, x);
  });
  Result right;
  check_special(cube.c, f64_contiguous(false), right);
  EXPECT_EQ(right.status, Status::ok) << right.worst.where;
  special = Harness(derivative(cube.c), View::contiguous, f64, {}).draw(0)[1][0];
  Result wrong;
  check_special(cube.c, f64_contiguous(false), wrong);
  EXPECT_EQ(wrong.status, Status::non_finite);
  EXPECT_EQ(wrong.worst.where, "first derivative at a special point (zeros in input 0), input 0 [0]");
  EXPECT_EQ(wrong.special + wrong.undecided, right.special + right.undecided);
}

}  // namespace
