// Compares gradcheck's verdicts on difference quotients with the verdicts of plain code for the same
// function. Covers steps, bounds, kinks and redrawn points. The plain code finds the parameters at which its
// verdict changes. Both verdicts are compared on both sides of each change.
#include "tests/support/host_function.h"

#include <cmath>
#include <limits>
#include <set>

#include "autograd/gradcheck/quotients.h"
#include "tests/support/gradcheck_cases.h"

namespace {

using namespace tg;
using namespace tg::gradcheck;
using namespace tg::testing;
using View = gradcheck::View;
using Function = std::function<double(double)>;

constexpr double u = 0x1p-53;

Values joined(const Point& p) {
  Values all;
  for (const Values& v : p) all.insert(all.end(), v.begin(), v.end());
  return all;
}

// Checks y_k = f(x_k) for one input x, or y_k = f(x_k) + f(w_k) for two inputs. `slope` is the derivative of
// f. With two inputs, an unread index input is between them.
struct Problem {
  std::size_t n, inputs;
  mutable std::int64_t evaluations = 0;  // of all elements of y
  Function f = [](double) { return 0.0; }, slope = f;
  std::shared_ptr<HostFunction> host = std::make_shared<HostFunction>();
  Case c;
  std::unique_ptr<Harness> harness;

  Problem(std::int64_t count, std::size_t inputs, bool is_split = false, Fill fill = {})
      : n(static_cast<std::size_t>(count)), inputs(inputs) {
    const std::int64_t first = is_split ? count / 2 : count;
    host->outputs = [this, first](const Point& x, DType) {
      host->seen.clear();
      ++evaluations;
      const Values y = outputs(x);
      const auto middle = y.begin() + first;
      return middle == y.end() ? Point{y} : Point{{y.begin(), middle}, {middle, y.end()}};
    };
    host->gradients = [this](const Point& x, const Point& r, DType) {
      Point z;
      for (std::size_t l : leaves()) {
        z.emplace_back();
        for (std::size_t k = 0; k < n; ++k) z.back().push_back(slope(x[l][k]) * joined(r)[k]);
      }
      return z;
    };
    std::vector<SampleInput> in{{{count}, fill}};
    if (inputs == 2) {
      in.push_back({{2}, {Fill::index, 0, 9}});
      in.push_back({{count}, fill});
    }
    c = case_of(host, in,
                is_split ? std::vector<Shape>{{first}, {count - first}} : std::vector<Shape>{{count}});
    harness = std::make_unique<Harness>(c, View::contiguous, f64, HarnessOptions{});
  }
  Values cotangents(std::uint64_t seed) const { return joined(harness->draw_cotangents(seed)); }
  std::vector<std::size_t> leaves() const {
    return inputs == 1 ? std::vector<std::size_t>{0} : std::vector<std::size_t>{0, 2};
  }
  Values outputs(const Point& x) const {
    Values y;
    for (std::size_t k = 0; k < n; ++k) y.push_back(inputs == 1 ? f(x[0][k]) : f(x[0][k]) + f(x[2][k]));
    return y;
  }
};

double dot(const Values& a, const Values& r) {
  double sum = 0;
  for (std::size_t k = 0; k < a.size(); ++k)
    if (r[k] != 0) sum += a[k] * r[k];
  return sum;
}

Values minus(Values a, const Values& b) {
  for (std::size_t k = 0; k < a.size(); ++k) a[k] -= b[k];
  return a;
}

// Σ r·(8·(f(h) − f(−h)) − (f(2h) − f(−2h))) / 12h
double quotient(const std::function<Values(double)>& at, const Values& r, double h) {
  const Values near = minus(at(h), at(-h)), far = minus(at(2 * h), at(-2 * h));
  Values s(near.size());
  for (std::size_t k = 0; k < s.size(); ++k) s[k] = (8 * near[k] - far[k]) / (12 * h);
  return dot(s, r);
}

// Returns the change of ⟨f, r⟩ at eight points within a few units of roundoff of x.
double jitter(const Problem& p, const Point& x, const Values& r) {
  std::vector<bool> floating(x.size(), false);
  for (std::size_t l : p.leaves()) floating[l] = true;
  p.evaluations += 1 + 8;
  double most = 0;
  for (std::uint64_t s = 0; s < 8; ++s)
    most = std::max(most, std::abs(dot(minus(p.outputs(nudged(x, 4 * u, floating, s)), p.outputs(x)), r)));
  return most;
}

// ---- Element by element

struct PlainElements {
  const Problem& p;
  const Options& o;
  bool stops = false;  // whether the first wrong element ends the check
  int wrong = 0;

  Result round(std::uint64_t seed) {
    Result result;
    Tally tally(result);
    const Point x = p.harness->draw(seed);
    const Values at_x = p.outputs(x);
    std::vector<Values> rows{p.cotangents(seed), p.cotangents(seed + 1000)};
    for (std::size_t k = 0; p.n <= 64 && k < p.n; ++k) rows.emplace_back(p.n, 0.0), rows.back()[k] = 1;
    p.evaluations += 1 + static_cast<std::int64_t>(rows.size());
    std::vector<double> jitters(rows.size(), -1);
    wrong = 0;
    for (std::size_t l : p.leaves())
      for (std::size_t k = 0; k < p.n; ++k) {
        const double h = o.h * std::max(1.0, std::abs(x[l][k]));
        const auto at = [&](double t) {
          Point moved = x;
          moved[l][k] = x[l][k] + t;
          return p.outputs(moved);
        };
        bool is_kink = false, is_known = false, is_wrong = false;
        double smallest = h;  // smallest step with a known quotient
        p.evaluations += 4;
        for (std::size_t i = 0; i < rows.size(); ++i) {
          const Values& r = rows[i];
          const double analytic = p.slope(x[l][k]) * r[k];
          double size = 0;
          for (std::size_t j = 0; j < p.n; ++j)
            if (std::isfinite(at_x[j])) size += std::abs(at_x[j] * r[j]);
          const auto compared = [&](double step) {
            const double numeric = quotient(at, r, step);
            const double noise = std::max(16 * u * size / step, 4 * std::max(0.0, jitters[i]) / step);
            return Comparison{analytic, numeric, o.tol.allowed(numeric) + noise, o.tol.atol / o.tol.rtol,
                              step};
          };
          const auto passes = [](const Comparison& c) {
            return std::abs(c.analytic - c.numeric) <= c.allowed;
          };
          Comparison best = compared(h);
          if (!passes(best) && wrong < 3) {
            if (jitters[i] < 0) jitters[i] = jitter(p, x, r);
            best = compared(h);
            for (const double step : {h / 4, h / 16, h / 64}) {
              if (passes(best)) break;
              if (step < smallest) smallest = step, p.evaluations += 4;
              if (const Comparison closer = compared(step); passes(closer)) best = closer;
            }
            if (!passes(best) && !is_known) {
              is_kink = kink(at, r, best, h), is_known = true;
              p.evaluations += 1 + 2 + 2 + 4;
            }
          }
          if (is_kink) continue;
          is_wrong = is_wrong || !passes(best);
          tally.add(best,
                    [&] { return std::to_string(l) + " " + std::to_string(k) + " " + std::to_string(i); });
        }
        result.skipped += is_kink;
        wrong += is_wrong;
        if (stops && wrong > 0) return result;
      }
    return result;
  }

  static bool kink(const std::function<Values(double)>& at, const Values& r, const Comparison& c, double h) {
    const auto jump = [&](double s) {  // between the one-sided slopes
      const Values up = minus(at(s), at(0)), down = minus(at(0), at(-s));
      Values d = minus(up, down);
      for (double& e : d) e /= s;
      return std::abs(dot(d, r));
    };
    const double small = jump(h / 64), near = std::abs(quotient(at, r, h / 64) - c.numeric),
                 apart = std::abs(c.analytic - c.numeric),
                 noise = 1e-8 * std::max(1.0, std::abs(dot(at(0), r)));
    if (!std::isfinite(apart)) return false;
    return (small > noise && small > 0.5 * jump(h) && small > 0.5 * apart) ||
           (near > noise && near > 0.1 * apart);
  }

  Result run() {
    Result r;
    for (std::uint64_t i = 0; i < 5; ++i) {
      r = round(o.seed + i);
      r.resampled = static_cast<std::int64_t>(i);
      if (r.skipped == 0 || r.status == Status::non_finite || wrong >= 3) return r;
      if (stops && r.status == Status::mismatch) return r;
    }
    if (20 * r.skipped > static_cast<std::int64_t>(p.n * p.inputs)) r.status = Status::mismatch;
    return r;
  }
};

// ---- Along random directions

struct PlainProjections {
  const Problem& p;
  const Options& o;

  bool compare(const Point& x, std::uint64_t seed, std::optional<std::size_t> only, Tally& tally) {
    Point d = p.harness->draw_direction(seed);
    for (std::size_t l = 0; l < d.size(); ++l)
      for (std::size_t k = 0; k < d[l].size(); ++k)
        d[l][k] = only && *only != l ? 0 : d[l][k] * std::max(1.0, std::abs(x[l][k]));
    const Values r = p.cotangents(seed);
    const auto at = [&](double t) {
      Point moved = x;
      for (std::size_t l : p.leaves())
        for (std::size_t k = 0; k < p.n; ++k) moved[l][k] += t * d[l][k];
      return p.outputs(moved);
    };
    double analytic = 0, size = 0;
    for (std::size_t l : p.leaves())
      for (std::size_t k = 0; k < p.n; ++k) {
        const double term = p.slope(x[l][k]) * r[k] * d[l][k];
        analytic += term, size += std::abs(term);
      }
    double best = 0, h = 0, noise = std::numeric_limits<double>::infinity();
    ++p.evaluations;
    for (const double step : {o.h, o.h / 4, o.h / 16}) {
      p.evaluations += 4 + 4;
      const double coarse = quotient(at, r, step), fine = quotient(at, r, step / 2);
      if (!std::isfinite(fine)) best = fine, noise = 0;
      if (!(std::abs(coarse - fine) < noise)) continue;
      noise = std::abs(coarse - fine), best = fine, h = step / 2;
      if (noise <= o.tol.allowed(fine)) break;
    }
    if (noise > 1e-6 * std::max({1.0, std::abs(best), size})) return false;
    double allowed = o.tol.allowed(best) + noise;
    if (std::abs(analytic - best) > allowed && h > 0) allowed += 4 * jitter(p, x, r) / h;
    tally.add({analytic, best, allowed, o.tol.atol / o.tol.rtol, h}, [] { return "a projection"; });
    return true;
  }

  Result run() {
    Result result;
    Tally tally(result);
    std::vector<std::optional<std::size_t>> along(4);
    if (p.inputs == 2) along.insert(along.end(), {0, 2});
    std::size_t done = 0;
    for (std::uint64_t i = 0; done < along.size() && i < along.size() * 5; ++i)
      compare(p.harness->draw(o.seed + i / 4), o.seed + 77 * i, along[done], tally)
          ? void(++done)
          : void(++result.resampled);
    result.skipped = static_cast<std::int64_t>(along.size() - done);
    if (result.skipped > 0) tally.fail("not smooth");
    return result;
  }
};

// ---- Both

enum class Kind { elements, first_wrong, projections };

Result plain(const Problem& p, const Options& o, Kind kind) {
  if (kind == Kind::projections) return PlainProjections{p, o}.run();
  return PlainElements{p, o, kind == Kind::first_wrong}.run();
}

Result product(Problem& p, const Options& o, Kind kind) {
  Result r;
  if (kind == Kind::projections)
    check_projections(*p.harness, o, r);
  else
    check_elements(*p.harness, o, r, kind == Kind::elements ? Find::worst : Find::any);
  return r;
}

// Returns the verdict. Omits the numbers that change slightly with every change of the parameter.
std::string verdict(const Result& r) {
  return name_of(r.status) + ": " + std::to_string(r.checked) + " checked, " + std::to_string(r.skipped) +
         " skipped, " + std::to_string(r.resampled) + " resampled, step " + std::to_string(r.worst.h);
}

void expect_near(double a, double b, const std::string& what) {
  if (std::isfinite(a) || std::isfinite(b)) {
    EXPECT_NEAR(a, b, 1e-9 * std::max(std::abs(b), 1e-290)) << what;
  }
}

void expect_same(const Result& got, const Result& expected, const std::string& what) {
  EXPECT_EQ(verdict(got), verdict(expected)) << what;
  expect_near(got.ratio, expected.ratio, what + " ratio");
  expect_near(got.max_abs, expected.max_abs, what + " largest error");
  expect_near(got.max_rel, expected.max_rel, what + " largest relative error");
  expect_near(got.worst.analytic, expected.worst.analytic, what + " analytic");
  expect_near(got.worst.numeric, expected.worst.numeric, what + " numeric");
  expect_near(got.worst.h, expected.worst.h, what + " step");
}

// Expects that gradcheck and the plain code have the same result and the same number of evaluations. Returns
// the plain code's result.
Result expect_plain(Problem& p, const Options& o, Kind kind, const std::string& what) {
  p.evaluations = 0;
  const Result expected = plain(p, o, kind);
  const std::int64_t evaluations = std::exchange(p.evaluations, 0);
  expect_same(product(p, o, kind), expected, what);
  EXPECT_EQ(p.evaluations, evaluations) << what;
  return expected;
}

// A family of checks with one parameter t. `set` sets the problem's functions and the options for t.
struct Family {
  const char* name;
  std::function<void(Problem&, Options&, double t)> set;
};

// Searches a grid for changes of the plain code's verdict. Compares both verdicts within 1/300 of each
// change, and at some points between changes. Returns the number of changes.
int compare_near_changes(Problem& p, const Family& family, Kind kind, double low, double high) {
  const auto verdict_at = [&](double t) {
    Options o;
    family.set(p, o, t);
    return verdict(plain(p, o, kind));
  };
  const auto compare = [&](double t) {
    Options o;
    family.set(p, o, t);
    expect_plain(p, o, kind, family.name + (" at " + std::to_string(t)));
  };
  int changes = 0, number = 0;
  std::string last = verdict_at(low);
  for (double t = low, next = t * 1.08; next <= high; t = next, next *= 1.08, ++number) {
    const std::string now = verdict_at(next);
    if (number % 8 == 0) compare(next);
    if (now == last) continue;
    double before = t, after = next;
    while (after > before * 1.003) {
      const double middle = std::sqrt(before * after);
      (verdict_at(middle) == last ? before : after) = middle;
    }
    compare(before);
    compare(after);
    ++changes, last = now;
  }
  return changes;
}

// The check at x = 0 reads some points. The function is 0 at all other points. At the steps h and h/64, its
// one-sided slopes differ by `jump` and its quotients are n. The gradient is a.
struct Crafted {
  double a = 1, n_h = 0, jump_h = 0, n_small = 0, jump_small = 0, at_0 = 0, step = 1e-3;
  void set(Problem& p) const {
    const Crafted c = *this;
    p.slope = [c](double) { return c.a; };
    p.f = [c](double t) {
      for (const bool is_small : {false, true}) {
        const double h = is_small ? c.step / 64 : c.step, sign = t > 0 ? 1 : -1;
        if (std::abs(t) == h)
          return c.at_0 + h * ((is_small ? c.jump_small : c.jump_h) / 2 +
                               sign * (is_small ? c.n_small : c.n_h) * 12 / 16);
      }
      return c.at_0;
    };
  }
};

Family crafted(const char* name, std::function<Crafted(double t, double r)> of) {
  return {name, [of](Problem& p, Options& o, double t) {
            of(t, std::abs(p.harness->draw_cotangents(o.seed)[0][0])).set(p);
          }};
}

// Each condition for a kink has a bound. The verdict changes at this bound.
TEST(Kinks, AreDecidedByEachConditionAtItsBound) {
  Problem p(1, 1, false, {Fill::uniform, 0, 0});
  const Family families[] = {
      crafted("jump compared with the distance", [](double t, double) { return Crafted{.jump_small = t}; }),
      crafted("jump compared with that of the whole step",
              [](double t, double) { return Crafted{.a = 0.01, .jump_h = 1, .jump_small = t}; }),
      crafted("jump compared with noise",
              [](double t, double r) { return Crafted{.a = 1.2e-8 / r, .jump_small = 2e-8 * t / r}; }),
      crafted("jump compared with noise of f",
              [](double t, double r) {
                return Crafted{.a = 1.2e-5 / r, .jump_small = 2e-5 * t / r, .at_0 = 1000 / r};
              }),
      crafted("quotients compared with the distance",
              [](double t, double) { return Crafted{.n_small = 0.2 * t}; }),
      crafted("quotients compared with noise",
              [](double t, double r) { return Crafted{.a = 5e-8 / r, .n_small = 2e-8 * t / r}; }),
      crafted("quotients compared with noise of f",
              [](double t, double r) {
                return Crafted{.a = 5e-5 / r, .n_small = 2e-5 * t / r, .at_0 = -1000 / r};
              }),
      crafted("a quotient that is not 0", [](double t, double) {
        return Crafted{.a = 3, .n_h = 2, .jump_h = 0.1, .n_small = 2, .jump_small = t};
      })};
  for (const Family& f : families)
    for (const Kind kind : {Kind::elements, Kind::first_wrong})
      EXPECT_GE(compare_near_changes(p, f, kind, 0.3, 0.8), 1) << f.name;
}

// The cases are x⁵, kinks, a wrong gradient, and a large constant. The error of the quotients of x⁵ is 4·h⁴.
// With a large constant, rounding matters.
const Family families[] = {
    {"fifth power",
     [](Problem& p, Options& o, double t) {
       p.f = [t](double x) { return t * x * x * x * x * x; };
       p.slope = [t](double x) { return t * 5 * x * x * x * x; };
       o.h = 0.02;
     }},
    {"fifth power in small steps",
     [](Problem& p, Options& o, double t) {
       p.f = [t](double x) { return t * x * x * x * x * x; };
       p.slope = [t](double x) { return t * 5 * x * x * x * x; };
       o.h = 0.005, o.tol = {.rtol = 1e-6, .atol = 1e-8};
     }},
    {"off by a share",
     [](Problem& p, Options& o, double t) {
       p.f = [](double x) { return x * x * x; };
       p.slope = [t](double x) { return 3 * x * x * (1 + 1e-6 * t); };
       o.seed = 3;
     }},
    {"off in some elements",
     [](Problem& p, Options& o, double t) {
       p.f = [](double x) { return x * x; };
       p.slope = [t](double x) { return 2 * x * (x > 0.4 ? 1 + 1e-4 * t : 1); };
       o.seed = 5;
     }},
    {"a kink that moves",
     [](Problem& p, Options& o, double t) {
       p.f = [t](double x) { return std::abs(x - 0.1 * t); };
       p.slope = [t](double x) { return x > 0.1 * t ? 1 : -1; };
       o.h = 0.04, o.seed = 1;
     }},
    {"a kink with a wrong gradient",
     [](Problem& p, Options& o, double t) {
       p.f = [](double x) { return std::max(0.0, x - 0.2) + x; };
       p.slope = [t](double x) { return x > 0.2 ? 2 : 1 + 1e-3 * t; };
       o.h = 0.02, o.seed = 2;
     }},
    {"a large constant",
     [](Problem& p, Options& o, double t) {
       p.f = [t](double x) { return 1e5 * t + x; };
       p.slope = [](double) { return 1; };
       o.tol = {.rtol = 1e-12, .atol = 1e-12};
     }},
    {"magnified rounding",  // the rounding of x to x·(1 + ε) changes f
     [](Problem& p, Options& o, double t) {
       p.f = [t](double x) { return x + 1e-10 * t * std::sin(1e15 * x); };
       p.slope = [](double) { return 1; };
       o.seed = 4;
     }},
    {"fifth power in large steps",
     [](Problem& p, Options& o, double t) {
       p.f = [t](double x) { return 0.02 * t * x * x * x * x * x; };
       p.slope = [t](double x) { return 0.1 * t * x * x * x * x; };
       o.h = 1;
     }},
    {"smooth nowhere",
     [](Problem& p, Options&, double t) {
       p.f = [t](double x) { return 1e-3 * t * std::sin(1e7 * x); };
       p.slope = [](double) { return 0; };
     }},
    {"a small slope that is off",
     [](Problem& p, Options& o, double t) {
       p.f = [](double x) { return 1e-3 * x * x; };
       p.slope = [t](double x) { return 2e-3 * x * (1 + 1e-6 * t); };
       o.seed = 6;
     }},
    {"not finite next to a constant",
     [](Problem& p, Options&, double t) {
       p.f = [t](double x) { return x > 2 * t ? std::numeric_limits<double>::infinity() : 0; };
       p.slope = [](double) { return 0; };
     }},
    {"not finite", [](Problem& p, Options&, double t) {
       p.f = [t](double x) { return x > 2 * t ? std::numeric_limits<double>::infinity() : x; };
       p.slope = [](double) { return 1; };
     }}};

TEST(Elements, AreJudgedAsByPlainCode) {
  Problem one(4, 1), two(3, 2, true), many(66, 1, true), most(64, 1, true);
  int changes = 0;
  compare_near_changes(most, families[0], Kind::elements, 1, 1.1);
  for (const Family& f : families) {
    changes += compare_near_changes(one, f, Kind::elements, 0.1, 10);
    changes += compare_near_changes(two, f, Kind::elements, 0.7, 1.4);
    changes += compare_near_changes(one, f, Kind::first_wrong, 0.5, 2);
    compare_near_changes(many, f, Kind::elements, 1, 1.1);
  }
  EXPECT_GE(changes, 20);
}

TEST(Projections, AreJudgedAsByPlainCode) {
  Problem one(4, 1), two(3, 2, true);
  int changes = 0;
  for (const Family& f : families) {
    changes += compare_near_changes(one, f, Kind::projections, 0.1, 10);
    changes += compare_near_changes(two, f, Kind::projections, 0.1, 10);
  }
  EXPECT_GE(changes, 20);
}

// Steps are powers of two. So the quotients are exact.
TEST(Kinks, ConditionsAtTheirBoundsDoNotHold) {
  Problem p(1, 1, false, {Fill::uniform, 0, 0});
  Options o;
  o.h = 0x1p-10;
  const auto r = [&] { return p.cotangents(o.seed)[0]; };
  while (0.1 * std::abs(10 * r()) != std::abs(r())) ++o.seed;
  for (const Crafted& c :
       {Crafted{.a = 0.01, .jump_h = 1, .jump_small = 0.5, .step = o.h},
        Crafted{.jump_small = 0.5, .step = o.h}, Crafted{.a = 10, .n_small = 1, .step = o.h}}) {
    c.set(p);
    EXPECT_EQ(expect_plain(p, o, Kind::first_wrong, "at a bound").skipped, 0) << c.a;
  }
}

// If a difference is exactly at its bound, it passes without a further check.
TEST(Bounds, DifferencesAtTheBoundPass) {
  Problem p(1, 1);
  p.slope = [](double) { return 2.5; };  // f is 0
  for (std::uint64_t i = 0; i < 4; ++i) {
    Options o;
    o.tol.atol = std::abs(2.5 * p.cotangents(1000 * i)[0]);
    expect_plain(p, o, Kind::elements, "at a bound");
    const double x = p.harness->draw(0)[0][0], d = p.harness->draw_direction(77 * i)[0][0];
    o.tol.atol = std::abs(2.5 * p.cotangents(77 * i)[0] * (d * std::max(1.0, std::abs(x))));
    expect_plain(p, o, Kind::projections, "at a bound");
  }
  // No smaller step is tried if the noise is exactly at its bound.
  p.f = [](double x) { return x * x * x * x * x; };
  p.slope = [](double x) { return 5 * x * x * x * x; };
  for (std::uint64_t i = 0; i < 4; ++i) {
    const double x = p.harness->draw(0)[0][0],
                 d = p.harness->draw_direction(77 * i)[0][0] * std::max(1.0, std::abs(x));
    const auto at = [&](double t) { return Values{p.f(x + t * d)}; };
    const Values r = p.cotangents(77 * i);
    Options o;
    o.tol = {.rtol = 0, .atol = std::abs(quotient(at, r, o.h) - quotient(at, r, o.h / 2))};
    expect_plain(p, o, Kind::projections, "at a bound");
  }
}

// Up to 5 % of the elements may be skipped. This is one of 20.
TEST(Kinks, AboveFivePercentAreRefused) {
  for (const std::int64_t n : {19, 20, 39, 40, 59})
    for (const std::size_t kinks : {1u, 2u, 3u}) {
      std::vector<SampleInput> in{{{n - static_cast<std::int64_t>(kinks)}, {Fill::uniform, 0.5, 2}},
                                  {{static_cast<std::int64_t>(kinks)}, {Fill::uniform, 0, 0}},
                                  {{7}, {Fill::index, 0, 5}}};
      const Case c{
          "relu", "of zeros", in, [](DType, Device) {
            return Callable{{}, [](std::span<const Tensor> x) { return Tensors{relu(x[0]), relu(x[1])}; }};
          }};
      const Result r = one(c);
      const bool is_refused = 20 * static_cast<std::int64_t>(kinks) > n;
      EXPECT_EQ(r.status, is_refused ? Status::mismatch : Status::ok) << n << ", " << kinks;
      EXPECT_EQ(r.skipped, static_cast<std::int64_t>(kinks));
      EXPECT_EQ(r.resampled, 4);
      EXPECT_EQ(r.note, is_refused ? std::to_string(kinks) + " of " + std::to_string(n) +
                                         " elements were on a kink at every point tried: more than 5 %"
                                   : "");
    }
}

// If an element is at a kink and fewer than three elements are wrong, the check continues at another point.
// If one wrong element is enough to fail, the check ends.
TEST(Kinks, AreDrawnAgainNextToAWrongElement) {
  const auto host = std::make_shared<HostFunction>();
  host->outputs = [](const Point& x, DType) { return Point{{std::max(0.0, x[0][0]) + x[1][0] * x[1][0]}}; };
  host->gradients = [](const Point& x, const Point& r, DType) {
    return Point{{r[0][0]}, {r[0][0] * 2 * x[1][0] * 1.5}};
  };
  const Case c = case_of(host, {{{1}, {Fill::uniform, 0, 0}}, {{1}, {Fill::uniform, 0.7, 0.7}}}, {{1}});
  Harness h(c, View::contiguous, f64, {});
  for (const Find find : {Find::worst, Find::any}) {
    Result r;
    check_elements(h, {}, r, find);
    EXPECT_EQ(r.status, Status::mismatch);
    EXPECT_EQ(r.skipped, 1);
    EXPECT_EQ(r.resampled, find == Find::any ? 0 : 4);
    EXPECT_EQ(r.checked, 3);
    EXPECT_EQ(r.note.empty(), find == Find::any) << r.note;
  }
}

// The log of an empty sum is −∞ for any inputs. So its slope is 0. A NaN or +∞ has no slope.
TEST(Elements, AnOutputThatStaysAtMinusInfinityHasSlopeZero) {
  for (const double value :
       {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity(), std::nan("")}) {
    Problem p(2, 1);
    p.f = [value](double x) { return x > 0 ? value : x; };
    p.slope = [](double x) { return x > 0 ? 0 : 1; };
    for (const Kind kind : {Kind::elements, Kind::projections}) {
      std::set<Status> seen;
      for (std::uint64_t seed = 0; seed < 40; ++seed) {
        Options o;
        o.seed = seed;
        bool is_plain = true, has_special = false;
        const Values xs = p.harness->draw(seed)[0];
        for (const double x : xs) is_plain &= std::abs(x) > 0.1, has_special |= x > 0;
        if (!is_plain || (kind == Kind::projections && !has_special)) continue;
        seen.insert(product(p, o, kind).status);
      }
      if (kind == Kind::elements) {
        EXPECT_EQ(seen.contains(Status::non_finite), value != -std::numeric_limits<double>::infinity());
      }
      EXPECT_EQ(seen.contains(Status::ok),
                kind == Kind::elements || value == -std::numeric_limits<double>::infinity());
    }
  }
}

TEST(Slopes, AreTwoAndFourPointQuotientsAtTheirSteps) {
  Problem p(2, 2);
  p.f = [](double x) { return x * x * x * x * x; };
  const Point x{{2, 3}, {1, 4}, {5, -1}};
  p.harness->set(x);
  for (const double h : {0.5, 0.125}) {
    const Slopes s = slopes(*p.harness, 2, 1, -1, h);
    EXPECT_EQ(s.two_point[0][0], 0);
    EXPECT_EQ(s.four_point[0][0], 0);
    // The error of the quotient (f(h) − f(−h)) / 2h is 10·x²·h² + h⁴. The error of the four-point quotient is
    // −4·h⁴.
    EXPECT_NEAR(s.two_point[0][1], 5 + 10 * h * h + h * h * h * h, 1e-12);
    EXPECT_NEAR(s.four_point[0][1], 5 - 4 * h * h * h * h, 1e-12);
    EXPECT_EQ(p.harness->outputs()[0], p.outputs(x));  // x is restored
  }
}

// The harness keeps the point that it draws for later checks.
TEST(Elements, AreNamedByTheirInputAndCotangent) {
  Problem p(2, 2);
  p.f = [](double x) { return x * x; };
  p.slope = [](double x) { return 2 * x * (x > 0 ? 1.25 : 1); };
  const Result r = product(p, {}, Kind::elements);
  EXPECT_EQ(r.status, Status::mismatch);
  const std::string& where = r.worst.where;
  EXPECT_TRUE(where.starts_with("input ")) << where;
  EXPECT_TRUE(where.find(" for a random cotangent") != std::string::npos ||
              where.find(" for output 0 [") != std::string::npos)
      << where;
  EXPECT_EQ(p.harness->outputs()[0], p.outputs(p.harness->draw(0)));
  const Result along = product(p, {}, Kind::projections);
  EXPECT_TRUE(along.worst.where.starts_with("a random projection")) << along.worst.where;
}

}  // namespace
