// Compares f32, bf16 and f16 with f64 for an op that is slightly wrong in one dtype. Plain code computes the
// bound of each result.
#include "tests/support/host_function.h"

#include <cmath>
#include <limits>

#include "autograd/gradcheck/rules.h"
#include "tests/support/gradcheck_cases.h"

namespace {

using namespace tg;
using namespace tg::gradcheck;
using namespace tg::testing;
using View = gradcheck::View;

constexpr double w = 0x1p-24;  // unit roundoff of f32, the compute type of all three types

double unit(DType t) {
  return t == f32 ? 0x1p-24 : t == bf16 ? 0x1p-8 : 0x1p-11;
}
double least(DType t) {
  return t == f32 ? 0x1p-149 : t == bf16 ? 0x1p-133 : 0x1p-24;
}

double largest_of(const Values& v) {
  double m = 0;
  for (const double e : v) m = std::max(m, std::abs(e));
  return m;
}

Point rounded(Point all, DType dtype) {
  for (Values& v : all)
    for (double& e : v) e = rounded_to(dtype, e);
  return all;
}

// The op computes y₀ = factor·x and y₁ = 8·x. In one dtype, one element of y₀ has the error `fault`. One
// element of the gradient has the error `fault_of_gradient`.
struct Problem {
  DType dtype;
  double factor, fault = 0, fault_of_gradient = 0;
  std::shared_ptr<HostFunction> host = std::make_shared<HostFunction>();
  Case c;

  Problem(DType dtype, const Values& x, double factor = 1) : dtype(dtype), factor(factor) {
    host->outputs = [this](const Point& p, DType t) {
      Point y = outputs(p);
      if (t == this->dtype) y[0][0] += fault;
      return y;
    };
    host->gradients = [this](const Point& p, const Point& r, DType t) {
      Point z = gradients(p, r);
      if (t == this->dtype && r[0][0] != 0) z[0][0] += fault_of_gradient;
      return z;
    };
    const auto n = static_cast<std::int64_t>(x.size());
    c = case_of(host, {{.shape = {n}, .values = x}}, {{n}, {n}});
  }
  Point outputs(const Point& p) const {
    Point y{p[0], p[0]};
    for (double& e : y[0]) e *= factor;
    for (double& e : y[1]) e *= 8;
    return y;
  }
  Point gradients(const Point& p, const Point& r) const {
    Point z{p[0]};
    for (std::size_t k = 0; k < z[0].size(); ++k) z[0][k] = factor * r[0][k] + 8 * r[1][k];
    return z;
  }
  Result check(std::uint64_t seed = 0) const {
    Options o;
    o.seed = seed;
    Result r;
    r.dtype = dtype;
    Harness wide(c, View::contiguous, f64, {});
    check_dtype(c, View::contiguous, dtype, wide, o, r);
    return r;
  }
};

// Returns the documented bound: 2·u·max|z| + 2·(S + 1)·(w·max|z| + m) + c·e.
struct Bounds {
  const Point exact;
  DType dtype;
  std::vector<double> moved, error;
  bool by_largest = false;

  Bounds(const Point& reference, DType t)
      : exact(reference), dtype(t), moved(exact.size(), 0), error(moved) {}
  static void widen(std::vector<double>& to, const Point& a, const Point& b) {
    for (std::size_t i = 0; i < to.size(); ++i)
      for (std::size_t k = 0; k < a[i].size(); ++k) to[i] = std::max(to[i], std::abs(a[i][k] - b[i][k]));
  }
  double of(std::size_t i, const Harness::Roundings& n) const {
    double size = largest_of(exact[i]);
    if (by_largest) {
      size = std::max(size, 1.0);
      for (const Values& v : exact) size = std::max(size, largest_of(v));
    }
    return 2 * unit(dtype) * largest_of(exact[i]) + 2 * (n.all + 1) * (w * size + moved[i] + least(dtype)) +
           (dtype == f32 ? 2 * (n.of_a_step + 1) : 4) * error[i];
  }
};

struct Expected {
  double ratio = 0;
  int stage = 0;
};

// Returns the largest ratio of an error to its bound. There are three stages. The first stage without an
// error above its bound determines the ratio.
Expected expected_ratio(const Problem& p, std::uint64_t seed) {
  const Harness narrow(p.c, View::contiguous, p.dtype, {}),
      twice(p.c, View::contiguous, p.dtype, {.twice = true});
  const Point x = narrow.draw(seed), r = narrow.draw_cotangents(seed);
  const Point y = p.outputs(x), z = p.gradients(x, r);
  Point got_y = y, got_z = z, quarter = z;
  got_y[0][0] += p.fault;
  got_z[0][0] += p.fault_of_gradient;
  for (double& e : quarter[0]) e *= 2;  // each call's outputs are used twice
  quarter[0][0] += p.fault_of_gradient;
  got_y = rounded(got_y, p.dtype), got_z = rounded(got_z, p.dtype), quarter = rounded(quarter, p.dtype);
  for (double& e : quarter[0]) e /= 2;
  Bounds of_y(y, p.dtype), of_z(z, p.dtype);
  const std::vector<bool> both(2, true), one(1, true);
  Expected e;
  for (e.stage = 0; e.stage < 3; ++e.stage) {
    const std::uint64_t from = e.stage == 2 ? 4 : 0, to = e.stage == 0 ? 0 : e.stage == 1 ? 4 : 40;
    of_y.by_largest = of_z.by_largest = e.stage == 2;
    for (std::uint64_t s = from; s < to; ++s) {
      const double nearest = 8 * unit(p.dtype),
                   step = nearest * std::pow(std::max(1.0, 1. / 64 / nearest), double(s % 4) / 3);
      const Point near_x = s == 0 ? x : rounded(nudged(x, step, one, s), p.dtype),
                  near_r = s == 0 ? r : rounded(nudged(r, step, both, s + 200), p.dtype);
      Bounds::widen(of_y.error, rounded(p.outputs(near_x), p.dtype), p.outputs(near_x));
      Bounds::widen(of_z.error, rounded(p.gradients(near_x, near_r), p.dtype), p.gradients(near_x, near_r));
      const Point moved_x = nudged(x, w, one, s), moved_r = nudged(r, w, both, s + 100);
      Bounds::widen(of_y.moved, p.outputs(moved_x), y);
      Bounds::widen(of_z.moved, p.gradients(moved_x, moved_r), z);
    }
    e.ratio = 0;
    const auto compare = [&](const Point& got, const Bounds& bounds, const Harness::Roundings& n) {
      for (std::size_t i = 0; i < got.size(); ++i)
        for (std::size_t k = 0; k < got[i].size(); ++k)
          e.ratio = std::max(e.ratio, std::abs(got[i][k] - bounds.exact[i][k]) / bounds.of(i, n));
    };
    compare(got_y, of_y, narrow.forward_roundings());
    compare(got_z, of_z, narrow.backward_roundings());
    compare(quarter, of_z, twice.backward_roundings());
    if (e.ratio <= 1) return e;
  }
  e.stage = 2;
  return e;
}

TEST(DTypes, BoundsMatchPlainCode) {
  for (const DType dtype : {f32, bf16, f16})
    for (const double factor : {1. / 3, 3.7}) {
      Problem p(dtype, {1.5, -0.25, 0.75, 1}, factor);
      std::array<int, 3> stages{};
      for (const bool of_gradient : {false, true})
        for (double units = 0.6; units < 200; units *= 1.6)
          for (const double sign : {1., -1.}) {
            const double size = of_gradient ? 8 : factor;
            (of_gradient ? p.fault_of_gradient : p.fault) = sign * units * unit(dtype) * size;
            (of_gradient ? p.fault : p.fault_of_gradient) = 0;
            const auto seed = static_cast<std::uint64_t>(units);
            const Result r = p.check(seed);
            const Expected e = expected_ratio(p, seed);
            EXPECT_NEAR(r.ratio, e.ratio, 1e-9 * e.ratio)
                << name_of(dtype) << ", factor " << factor << ", " << units;
            EXPECT_EQ(r.status, e.ratio <= 1 ? Status::ok : Status::mismatch);
            EXPECT_EQ(r.checked, 4 * 4);  // outputs, gradients and quarters of gradients
            EXPECT_EQ(r.rules, 2);
            EXPECT_EQ(r.worst.h, 0);
            ++stages[static_cast<std::size_t>(e.stage)];
          }
      EXPECT_GT(stages[0], 4) << name_of(dtype);
      EXPECT_GT(stages[2], 4) << name_of(dtype);
    }
}

// The bound is measured at the points 0 to 39. If an element changes at one of these points, its bound
// becomes larger.
TEST(DTypes, FortyNeighbouringPointsAreMeasured) {
  const Values x{1.5, -0.25, 0.75, 1, 0.5, -1, 1.25, 0.625, -0.5, 1.75, -1.5, 0.25};
  for (const std::uint64_t point : {0, 1, 3, 4, 38, 39, 40, 41}) {
    Problem p(f32, x);
    p.host->outputs = [&](const Point& at, DType t) {
      Point y = p.outputs(at);
      if (t == f32) y[0][0] += 1e-3;
      if (t == f64 && at[0] == nudged(Point{x}, w, {true}, point)[0]) y[0][5] += 1;
      return y;
    };
    EXPECT_EQ(p.check().status, point < 40 ? Status::ok : Status::mismatch) << point;
  }
}

// y = (x + 1000) − 1000. The sum is stored, as in the decomposition.
TEST(DTypes, KernelsMayRoundAsTheirDecompositionsDo) {
  for (const bool is_decomposed : {true, false}) {
    Op op{.name = "rounds_inside",
          .infer =
              [](std::span<const Operand> in, const Attrs&) {
                return std::vector<OutSpec>{{in[0].dtype, row_major(in[0].shape())}};
              },
          .vjp = [](const Backprop& g) { return std::vector<Tensor>{g.z[0] * 1}; },
          .host =
              [](std::span<const HostView> in, std::span<const HostView> out, const Attrs&) {
                for (std::int64_t i = 0; i < in[0].numel(); ++i)
                  out[0].set(i, rounded_to(in[0].dtype, in[0].at(i) + 1000) - 1000);
              }};
    if (is_decomposed)
      op.decompose = [](std::span<const Tensor> in, const Attrs&) {
        return std::vector<Tensor>{sum(unsqueeze(in[0] + 1000, 1), {1}) - 1000};
      };
    const Case c{"rounds_inside", "vector", {{{6}}}, [&op](DType, Device) {
                   return Callable{{}, [&op](std::span<const Tensor> x) {
                                     return std::vector<Tensor>{record(op, {x[0]})};
                                   }};
                 }};
    for (const DType dtype : {f32, f16}) {
      Harness wide(c, View::contiguous, f64, {});
      Result r;
      r.dtype = dtype;
      check_dtype(c, View::contiguous, dtype, wide, {}, r);
      EXPECT_EQ(r.status, is_decomposed ? Status::ok : Status::mismatch) << name_of(dtype) << r.ratio;
    }
  }
}

TEST(DTypes, ResultsAreNamed) {
  Problem p(f32, {1.5, -0.25, 1});
  p.fault = 1;
  Result r = p.check();
  EXPECT_EQ(r.worst.where, "output 0 [0]");
  EXPECT_EQ(r.worst.analytic, 2.5);
  EXPECT_EQ(r.worst.numeric, 1.5);
  EXPECT_EQ(r.max_abs, 1);
  EXPECT_NEAR(r.max_rel, 1 / 1.5, 1e-12);
  p.fault = 0, p.fault_of_gradient = 1;
  r = p.check();
  EXPECT_EQ(r.worst.where, "gradient of floating input 0 [0]");
  p.fault_of_gradient = 0;
  p.host->gradients = [&](const Point& x, const Point& cotangents, DType t) {
    Point z = p.gradients(x, cotangents);
    if (t == f32 && std::abs(cotangents[0][1]) > 1.5) z[0][1] *= 1.01;  // the cotangents belong to two uses
    return z;
  };
  std::uint64_t seed = 0;
  while (std::abs(Harness(p.c, View::contiguous, f32, {}).draw_cotangents(seed)[0][1]) < 0.8) ++seed;
  r = p.check(seed);
  EXPECT_EQ(r.worst.where, "quarter of the gradient, used four times, of floating input 0 [1]");
}

// Numbers above a quarter of f16's range are not compared.
TEST(DTypes, NumbersBeyondAQuarterOfTheRangeAreNotCompared) {
  for (const double large : {16376.0, 16384.0})
    for (const bool of_gradient : {false, true}) {
      Problem p(f16, {of_gradient ? 1 : large / 8, 1});
      if (of_gradient)
        p.host->gradients = [large](const Point&, const Point&, DType) { return Point{{large, 1}}; };
      const Result r = p.check();
      const bool is_beyond = large == 16384;
      const char* const note = of_gradient ? "a zero cotangent does not give exactly zero" : "";
      EXPECT_EQ(r.note, is_beyond ? "not compared: the values exceed f16" : note);
      EXPECT_EQ(r.checked, is_beyond ? 0 : 8);
    }
}

TEST(DTypes, EqualInfinitiesHaveDistanceZero) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  for (const double got : {inf, -inf, 1.0}) {
    Problem p(f32, {inf, 1});
    p.host->outputs = [&](const Point& x, DType t) {
      Point y = p.outputs(x);
      if (t == f32) y[0][0] = got;
      return y;
    };
    const Result r = p.check();
    EXPECT_EQ(r.status, got == inf ? Status::ok : Status::non_finite) << r.worst.where;
  }
}

// The op reads an expanded input. Each element is rounded separately. The gradients of equal elements are
// summed.
TEST(DTypes, AnExpandedInputMayBeOffByTheSumOfItsTerms) {
  const auto host = std::make_shared<HostFunction>();
  double fault = 0;
  host->outputs = [](const Point& x, DType) { return Point{x[0]}; };
  host->gradients = [&](const Point&, const Point& r, DType t) {
    Point z{r[0]};
    if (t == f32 && r[0][0] != 0) z[0][0] += fault;
    return z;
  };
  const Case c = case_of(host, {{{4, 2}}}, {{4, 2}});
  for (const View view : {View::expanded, View::expanded_last}) {
    fault = 0;
    Harness wide(c, view, f64, {}), narrow(c, view, f32, {}), apart(c, View::contiguous, f64, {}),
        rounding(c, view, f64, {.round_to = f32}),
        rounding_apart(c, View::contiguous, f64, {.round_to = f32});
    const Point x = narrow.draw(0), r = narrow.draw_cotangents(0);
    const auto column = [&](std::size_t i) { return view == View::expanded ? i % 2 : i / 2; };
    const std::size_t terms = view == View::expanded ? 4 : 2;
    const auto summed = [&](const Values& z) {
      Values s(8 / terms, 0.0);
      for (std::size_t i = 0; i < 8; ++i) s[column(i)] += z[i];
      return s;
    };
    const Values exact = summed(r[0]);
    double moved = 0, error = 0;
    const auto widen = [](double& to, const Values& a, const Values& b) {
      for (std::size_t k = 0; k < a.size(); ++k) to = std::max(to, std::abs(a[k] - b[k]));
    };
    double largest_term = 0;
    for (std::uint64_t s = 0; s < 4; ++s) {
      const double nearest = 8 * unit(f32), step = nearest * std::pow(1. / 64 / nearest, double(s % 4) / 3);
      const Point near_x = s == 0 ? x : rounded(nudged(x, step, {true}, s), f32),
                  near_r = s == 0 ? r : rounded(nudged(r, step, {true}, s + 200), f32);
      widen(error, read(rounding, near_x, near_r).gradients[0], read(wide, near_x, near_r).gradients[0]);
      Point seen(1);
      for (std::size_t i = 0; i < 8; ++i) seen[0].push_back(x[0][column(i)]);
      const Point moved_x = nudged(seen, w, {true}, s), moved_r = nudged(r, w, {true}, s + 100);
      widen(moved, summed(moved_r[0]), exact);
      const Values of_moved = read(apart, moved_x, moved_r).gradients[0],
                   of_rounded = read(rounding_apart, moved_x, moved_r).gradients[0];
      widen(error, summed(of_rounded), summed(of_moved));
      largest_term = std::max({largest_term, largest_of(of_moved), largest_of(of_rounded)});
    }
    const Harness::Roundings n = narrow.backward_roundings();
    const double stored = 2 * w * largest_of(exact), inside = 2 * (n.all + 1);
    const double before = stored + inside * (w * largest_of(exact) + least(f32)),
                 after = stored +
                         inside * (w * std::max(largest_of(exact), double(terms) * largest_term) + moved +
                                   least(f32)) +
                         2 * (n.of_a_step + 1) * error;
    ASSERT_LT(1.2 * before, after);
    fault = 1.15 * before;
    Result result;
    result.dtype = f32;
    check_dtype(c, view, f32, wide, {}, result);
    EXPECT_EQ(result.status, Status::ok) << result.ratio;
    EXPECT_EQ(result.checked, 8 + static_cast<std::int64_t>(exact.size()));
    Values got(exact.size(), 0.0);
    const Values narrow_z = read(narrow, x, r).gradients[0];
    double most = 0;
    for (std::size_t k = 0; k < exact.size(); ++k) most = std::max(most, std::abs(narrow_z[k] - exact[k]));
    EXPECT_NEAR(result.ratio, most / after, 1e-9 * result.ratio) << name_of(view);
  }
}

}  // namespace
