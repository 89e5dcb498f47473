#include "autograd/gradcheck/quotients.h"

#include <algorithm>
#include <limits>

namespace tg::gradcheck {

namespace {

constexpr double huge = 2e13;                         // the cube overflows in f32
constexpr double far_out = 1e6;                       // here functions have reached their limits at ∞
constexpr double agreement = 1e-5;                    // relative to the larger derivative, or to 1
constexpr std::size_t most_fast = 4, most_slow = 32;  // number of elements checked per input

struct SpecialPoint {
  std::string name;
  Point x;
  std::optional<std::size_t> only;  // the special input; empty: all inputs
  bool is_huge = false;             // whether it has huge numbers
};

bool is_positive(const Leaf& leaf) {
  return leaf.spec.fill.kind == Fill::uniform && leaf.spec.fill.low >= 0;
}

// Returns as many values as `like`, by repeating `values`.
Values in_turn(const Values& like, std::initializer_list<double> values) {
  Values v(like.size());
  for (std::size_t k = 0; k < v.size(); ++k) v[k] = values.begin()[k % values.size()];
  return v;
}

// Returns v with every third element, or every element, replaced by x.
Values replaced(Values v, double x, bool everywhere) {
  for (std::size_t k = 0; k < v.size(); k += everywhere ? 1 : 3) v[k] = x;
  return v;
}

// The first `inputs` leaves of the harness are inputs of the op. The other leaves are cotangents of second
// derivatives. They keep their drawn values.
std::vector<SpecialPoint> points_of(const Case& c, const Harness& harness, std::size_t inputs,
                                    std::uint64_t seed) {
  const Point drawn = harness.draw(seed);
  if (c.expected) return {{"the sample's values", drawn, {}}};
  std::vector<SpecialPoint> points{{"zeros and ties", drawn, {}}, {"equal numbers", drawn, {}}};
  const bool everywhere = c.op && c.op->pointwise;
  for (std::size_t l = 0; l < inputs; ++l) {
    const Leaf& leaf = harness.leaves()[l];
    if (!leaf.floating || drawn[l].empty() || !leaf.spec.values.empty()) continue;
    const auto add = [&](const char* name, Values v, bool is_huge = false) {
      SpecialPoint p{name + (" in input " + std::to_string(l)), drawn, l, is_huge};
      p.x[l] = std::move(v);
      points.push_back(std::move(p));
    };
    const Values& v = drawn[l];
    points[0].x[l] = is_positive(leaf) ? in_turn(v, {0, 1, 0, 0.5, 1}) : in_turn(v, {0, 1, 0, -1, 1});
    points[1].x[l] =
        in_turn(v, {leaf.spec.fill.kind == Fill::uniform || leaf.spec.fill.kind == Fill::off_zero ? 1. : 0.});
    Values zeros = v;  // only one zero: a product with two zeros has the gradient 0
    zeros.front() = 0;
    add("zeros", std::move(zeros));
    // All huge numbers have the same sign. If they canceled in a sum, only their rounding errors would
    // remain.
    const bool jumps = c.op && c.op->jumps;
    if (!jumps) add("huge numbers", in_turn(v, {huge, 1, huge / 2}), true);
    if (!jumps && !is_positive(leaf)) add("huge negative numbers", in_turn(v, {-huge, 1, -huge / 2}), true);
    constexpr double infinity = std::numeric_limits<double>::infinity();
    add("infinity", replaced(v, infinity, everywhere));
    if (!is_positive(leaf)) add("negative infinity", replaced(v, -infinity, everywhere));
  }
  return points;
}

bool is_finite(const Point& p) {
  for (const Values& v : p)
    for (double x : v)
      if (!std::isfinite(x)) return false;
  return true;
}

// The slopes of t ↦ ⟨f(x + t·e), r⟩ at 0 for one step h.
struct Sides {
  bool finite = false;
  double central = 0, left = 0, right = 0, noise = 0;
  double bend = 0;  // Σ |r·(right − left)| over all outputs, so that their kinks do not cancel
};

enum class Verdict { agrees, wrong, at_kink, undecided };

struct Decision {
  double analytic;
  Verdict verdict = Verdict::undecided;
  bool is_smooth =
      false;  // of the quotient that agrees: a convention at a kink may be the mean of both slopes
  Comparison comparison{};
  bool repeated = false;  // a first derivative, visited because the second does not exist
};

class SpecialElements {
 public:
  // Called with each element's derivative, the decision about it, and a description of the element.
  using Visit = std::function<void(const Decision&, const std::string& where)>;

  // If this object checks second derivatives, `first` checks the first derivatives.
  SpecialElements(const Case& c, std::size_t inputs, const char* order, const Options& options,
                  SpecialElements* first = nullptr)
      : case_(c),
        inputs_(inputs),
        order_(order),
        options_(options),
        first_(first),
        harness_(c, View::contiguous, f64, {}) {}

  void each(const Visit& visit) {
    if (!harness_.differentiable()) return;
    r_ = harness_.draw_cotangents(options_.seed);
    harness_.set_cotangents(r_);
    for (const SpecialPoint& p : points_of(case_, harness_, inputs_, options_.seed)) at(p, visit);
  }

 private:
  void at(const SpecialPoint& p, const Visit& visit) {
    harness_.set(p.x);
    const bool finite = is_finite(harness_.outputs());
    // A gradient that is not finite has no derivatives. Such a gradient is right only if the function has no
    // slope at the point.
    if (!finite && first_)
      first_->at(
          {p.name, {p.x.begin(), p.x.begin() + static_cast<std::ptrdiff_t>(inputs_)}, p.only, p.is_huge},
          [&visit](Decision d, const std::string& where) {
            d.repeated = true;
            visit(d, where);
          });
    const Point z = harness_.gradients();
    for (std::size_t number = 0; const std::size_t l : harness_.floating_leaves()) {
      const Values& z_l = z[number++];
      if (l >= inputs_ || (p.only && *p.only != l)) continue;
      for (std::size_t k : chosen(z_l.size()))
        visit(finite ? decided(l, k, p.x[l][k], z_l[k], p.is_huge) : Decision{z_l[k]},
              order_ + (" at a special point (" + p.name) + "), input " + std::to_string(l) + " " +
                  index_text(harness_.leaves()[l].shape, static_cast<std::int64_t>(k)));
    }
  }

  // The first and the last of n elements, and some in between.
  std::vector<std::size_t> chosen(std::size_t n) const {
    const std::size_t most = std::min(n, options_.fast ? most_fast : most_slow);
    std::vector<std::size_t> k;
    for (std::size_t i = 0; i < most; ++i) k.push_back(most == n ? i : i * (n - 1) / (most - 1));
    return k;
  }

  Decision decided(std::size_t l, std::size_t k, double x, double a, bool is_huge) {
    const double at = std::isfinite(x) ? x : std::copysign(far_out, x);
    std::vector<Sides> seen;
    Decision d{a};
    // Near a huge number, a function may bend within a distance of 1. Rounding errors may also hide the slope
    // unless the steps are large.
    std::vector<double> steps{1e-3, 1e-4, 1e-5};
    for (double& step : steps) step *= std::max(1.0, std::abs(at));
    if (std::abs(at) >= huge / 2) steps.insert(steps.begin(), {0x1p-4, 0x1p-5});
    for (const double h : steps) {
      const Sides s = sides(l, k, at, h);
      if (!s.finite) continue;
      seen.push_back(s);
      d.comparison = {a, s.central, agreement * std::max({1.0, std::abs(a), std::abs(s.central)}) + s.noise,
                      1, h};
      if (std::isfinite(a) && s.noise < 1e-3 * std::max(1.0, std::abs(a)) &&
          std::abs(a - s.central) <= d.comparison.allowed) {
        d.verdict = Verdict::agrees;
        d.is_smooth = s.bend <= 0.01 * std::max(1.0, std::abs(a));
        break;
      }
    }
    harness_.set(l, k, x);
    if (d.verdict != Verdict::agrees && !seen.empty()) judge(a, is_huge, seen, d);
    return d;
  }

  bool is_pointwise() const { return case_.op && case_.op->pointwise; }

  // If no quotient agrees with the derivative, quotients of several steps together decide. For a derivative
  // that is not finite, one step suffices.
  void judge(double a, bool is_huge, const std::vector<Sides>& seen, Decision& d) const {
    if (!std::isfinite(a)) {
      d.verdict = Verdict::wrong;
      return;
    }
    // If two huge numbers are equal, a kink is within a distance of 1. Rounding errors hide such a kink.
    if (is_huge && !is_pointwise()) return;
    for (std::size_t i = 0; i + 1 < seen.size(); ++i) {
      const Sides &s = seen[i], &t = seen[i + 1];
      const double apart = std::abs(a - t.central), open = std::abs(t.right - t.left);
      const bool smooth = std::abs(s.central - t.central) <= 0.05 * apart && t.bend <= 0.1 * apart;
      const bool kink = std::abs(s.right - t.right) <= 0.1 * open && std::abs(s.left - t.left) <= 0.1 * open;
      if (!smooth && !is_pointwise()) continue;  // outputs may have different kinks
      const double low = std::min(t.left, t.right) - 0.05 * open,
                   high = std::max(t.left, t.right) + 0.05 * open;
      if (t.noise > 0.1 * apart || !(smooth || kink)) continue;
      d.verdict = !smooth && low <= a && a <= high ? Verdict::at_kink : Verdict::wrong;
      d.comparison = {a, t.central, 0.1 * apart, 1, d.comparison.h};
      return;
    }
  }

  Sides sides(std::size_t l, std::size_t k, double x, double h) {
    const auto f = [&](double at) {
      harness_.set(l, k, at);
      return harness_.outputs();
    };
    const Point mm = f(x - 2 * h), m = f(x - h), mid = f(x), p = f(x + h), pp = f(x + 2 * h);
    Sides s;
    s.finite = is_finite(mm) && is_finite(m) && is_finite(mid) && is_finite(p) && is_finite(pp);
    if (!s.finite) return s;
    double size = 0;
    for (std::size_t o = 0; o < mid.size(); ++o)
      for (std::size_t i = 0; i < mid[o].size(); ++i) {
        const double r = r_[o][i];
        s.central += r * (8 * (p[o][i] - m[o][i]) - (pp[o][i] - mm[o][i])) / (12 * h);
        s.right += r * (p[o][i] - mid[o][i]) / h;
        s.left += r * (mid[o][i] - m[o][i]) / h;
        s.bend += std::abs(r * (p[o][i] - mid[o][i] - (mid[o][i] - m[o][i])) / h);
        size += std::abs(r * mid[o][i]);
      }
    s.noise = 16 * unit_roundoff(f64) * size / h;
    return s;
  }

  const Case& case_;
  const std::size_t inputs_;
  const std::string order_;
  const Options& options_;
  SpecialElements* const first_;
  Harness harness_;
  Point r_;
};

// If `repeats` is set, also visits the first derivatives of elements without a second derivative.
void each_element(const Case& c, const Options& options, bool repeats, const SpecialElements::Visit& visit) {
  SpecialElements first(c, c.inputs.size(), "first derivative", options);
  if (!c.expected) first.each(visit);
  if (c.op && c.op->first_order_only) return;
  std::optional<Case> second;
  try {
    second = derivative(c);
    SpecialElements(*second, c.inputs.size(), "second derivative", options,
                    repeats && !c.expected ? &first : nullptr)
        .each(visit);
  } catch (const GradientError&) {  // `gradcheck --order 2` reports this error
  }
}

}  // namespace

bool has_special_points(const Case& c, const Options& options) {
  if (!c.op || !c.op->samples) return false;
  const std::vector<Sample> samples = c.op->samples();
  constexpr std::size_t many = 8, turns = 4;
  if (!options.fast || samples.size() <= many) return true;
  const auto own = std::ranges::find(samples, c.name, &Sample::name);
  return static_cast<std::uint64_t>(own - samples.begin()) % turns == options.seed % turns;
}

void check_special(const Case& c, const Options& options, Result& result) {
  Tally tally(result);
  each_element(c, options, true, [&](const Decision& d, const std::string& where) {
    if (!d.repeated) ++(d.verdict == Verdict::undecided ? result.undecided : result.special);
    if (d.verdict == Verdict::agrees || d.verdict == Verdict::wrong)
      tally.judge(d.comparison, [&] { return where; });
  });
}

std::vector<SpecialDerivative> special_derivatives(const Case& c, const Options& options) {
  std::vector<SpecialDerivative> all;
  each_element(c, options, false, [&](const Decision& d, const std::string&) {
    all.push_back({d.analytic, d.is_smooth});
  });
  return all;
}

Case replayed(const Case& c, const Replay::Substitute& substitute, bool keeps_custom_gradients) {
  Case r = c;
  r.make = [make = c.make, substitute, keeps_custom_gradients](DType dtype, Device device) {
    const Callable f = make(dtype, device);
    return Callable{f.parameters, [f, substitute, keeps_custom_gradients](std::span<const Tensor> x) {
                      Graph& graph = x[0].graph();
                      const auto first = static_cast<NodeId>(graph.nodes().size());
                      std::vector<Tensor> out = f.call(x);
                      const auto last = static_cast<NodeId>(graph.nodes().size());
                      Replay again(graph, graph, substitute);
                      if (!keeps_custom_gradients) again.leave_custom_gradients();
                      again.run(first, last);
                      for (Tensor& t : out) t = again(t);
                      return out;
                    }};
  };
  return r;
}

}  // namespace tg::gradcheck
