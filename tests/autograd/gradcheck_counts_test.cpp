// Checks that gradcheck makes all checks in its report. The number of checks must follow from the shapes of a
// case. Every projection and cotangent must matter. Every op that adds terms must state the number of terms.
#include <gtest/gtest.h>

#include <cmath>

#include <tilegrad/autograd/gradcheck/gradcheck.h>
#include <tilegrad/tilegrad.h>
#include "autograd/gradcheck/harness.h"

namespace {

using namespace tg;
using namespace tg::gradcheck;
using Tensors = std::vector<Tensor>;

bool is_checked(const SampleInput& in) {
  return !in.dtype && in.fill.kind != Fill::index && in.fill.kind != Fill::bits;
}

// The shapes of a case, computed without the checker.
struct Shapes {
  std::vector<SampleInput> inputs;  // inputs with a gradient
  std::vector<Shape> outputs;       // floating-point outputs
};

Shapes shapes_of(const Case& c) {
  Shapes s;
  Graph g;
  Tensors x;
  for (const SampleInput& in : c.inputs) {
    x.push_back(g.input("x" + std::to_string(x.size()), in.shape, input_dtype(in, f64)));
    if (is_checked(in)) s.inputs.push_back(in);
  }
  for (const Tensor& t : c.make(f64, Device::cpu()).call(x))
    if (is_float(t.dtype())) s.outputs.push_back(t.shape());
  return s;
}

// Computes the shapes of the gradient as a function of inputs and cotangents.
Shapes derivative_of(const Shapes& s) {
  Shapes d = s;
  d.outputs.clear();
  for (const Shape& out : s.outputs) d.inputs.push_back({out});
  for (const SampleInput& in : s.inputs) d.outputs.push_back(in.shape);
  return d;
}

// Returns the axis along which a view repeats an input. Returns -1 if the view repeats nothing.
int repeated_axis(const SampleInput& in, View view) {
  int axis = -1;
  if (!in.values.empty() || (view != View::expanded && view != View::expanded_last)) return axis;
  for (int a = 0; a < in.shape.size(); ++a)
    if (in.shape[a] > 1 && (axis < 0 || view == View::expanded_last)) axis = a;
  return axis;
}

bool view_changes(const Case& c, View view) {
  if (view == View::contiguous) return true;
  for (const SampleInput& in : c.inputs) {
    const bool floating = in.dtype ? is_float(*in.dtype) : is_checked(in);
    if (view == View::offset || (view == View::transposed && in.shape.size() > 1) ||
        (view == View::sliced && in.shape.size() > 0) || (floating && repeated_axis(in, view) >= 0))
      return true;
  }
  return false;
}

std::int64_t elements(const SampleInput& in, View view) {
  const int axis = repeated_axis(in, view);
  return numel(in.shape) / (axis < 0 ? 1 : in.shape[axis]);
}

bool has_equal_inputs(const Shapes& s) {
  for (std::size_t i = 0; i < s.inputs.size(); ++i)
    for (std::size_t j = i + 1; j < s.inputs.size(); ++j) {
      const SampleInput &a = s.inputs[i], &b = s.inputs[j];
      if (a.shape == b.shape && a.fill.kind == b.fill.kind && a.fill.low == b.fill.low &&
          a.fill.high == b.fill.high && a.values.empty() && b.values.empty())
        return true;
    }
  return false;
}

struct Counts {
  std::int64_t checked = 0, rules = 0, special = 0;
  bool operator==(const Counts&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Counts& c) {
  return out << c.checked << " numbers, " << c.rules << " rules, " << c.special << " special ones";
}

// Returns the number of derivatives at special points. Each point counts up to 4 elements of each input if
// `fast`, otherwise up to 32. For each input, there are five points at which only this input is special, or
// three if it is positive. Two or one of them have huge numbers, which an op with jumps omits. At two more
// points, all inputs are special.
std::int64_t special_elements(const Case& c, const Shapes& s, bool fast) {
  std::int64_t sum = 0;
  for (const SampleInput& in : s.inputs) {
    const std::int64_t n = std::min<std::int64_t>(numel(in.shape), fast ? 4 : 32);
    const bool is_positive = in.fill.kind == Fill::uniform && in.fill.low >= 0;
    sum += n * (c.expected           ? 1
                : !in.values.empty() ? 2
                                     : (is_positive ? 5 : 7) - (c.op->jumps ? (is_positive ? 1 : 2) : 0));
  }
  return sum;
}

bool visits_special_points(const Case& c, const Options& o) {
  const std::vector<Sample> samples = c.op->samples();
  for (std::size_t i = 0; i < samples.size(); ++i)
    if (samples[i].name == c.name) return !o.fast || samples.size() <= 8 || i % 4 == o.seed % 4;
  return false;
}

// Follows the section "Number of checks" in docs/gradcheck-method.md.
Counts expected_counts(const Case& c, const Options& o, View view, DType dtype) {
  Shapes s = shapes_of(c);
  const Shapes own = s;
  if (o.order == 2) s = derivative_of(s);
  std::int64_t in = 0, out = 0;
  for (const SampleInput& x : s.inputs) in += elements(x, view);
  for (const Shape& y : s.outputs) out += numel(y);
  const auto inputs = static_cast<std::int64_t>(s.inputs.size()),
             outputs = static_cast<std::int64_t>(s.outputs.size());
  const bool is_plain = view == View::contiguous, is_pair = o.order == 1 && has_equal_inputs(s);
  Counts n;
  if (dtype != f64) {
    const std::int64_t times = is_plain && is_pair ? 2 : 1;
    n.checked = times * (out + (is_plain ? 2 : 1) * in);
    n.rules = times * 2;
    return n;
  }
  const bool derives_twice = !c.op->first_order_only;
  if (c.expected && o.order == 2) {
    n.special = derives_twice ? special_elements(c, own, o.fast) : 0;
    return n;
  }
  if (c.expected)
    n.checked = out + in;
  else if (o.fast)
    n.checked = inputs == 1 ? 4 : 4 + inputs;
  else
    n.checked = in * (2 + (out <= 64 ? out : 0));
  n.rules = 2;
  if (!is_plain) return n;
  n.rules += 3 + (inputs > 1 ? inputs : 0) + (outputs > 1 ? outputs : 0);
  n.rules += 2 * (c.op->decompose && (o.order == 1 || !c.op->first_order_only)) + is_pair;
  if (o.order == 1 && visits_special_points(c, o))
    n.special = special_elements(c, own, o.fast) * ((c.expected ? 0 : 1) + derives_twice);
  return n;
}

// Checks a case in a view and dtype. Expects the right number of checks. `refused` counts cases without a
// gradient.
void expect_counts(const Case& c, const Options& o, int& refused) {
  const Shapes s = shapes_of(c);
  const std::vector<Result> results = check(c, o);
  if (results.size() == 1 && results[0].status == Status::refused) {
    ++refused;
    const bool nothing = s.inputs.empty() || s.outputs.empty();
    // If an op has only a first derivative, the decomposition gives the second derivative.
    EXPECT_TRUE(nothing || !c.op->not_differentiable.empty() ||
                (o.order == 2 && c.op->first_order_only && !c.op->decompose))
        << c.text() << ": " << results[0].note;
    EXPECT_EQ(results[0].rules, o.order == 1 && c.op->decompose ? 1 : 0) << c.text();
    return;
  }
  std::size_t number = 0;
  for (View view : o.views) {
    if (!view_changes(c, view) || (c.expected && o.order == 2 && view != View::contiguous)) continue;
    for (DType dtype : o.dtypes) {
      ASSERT_LT(number, results.size()) << c.text() << " is not checked in " << name_of(view);
      const Result& r = results[number++];
      const std::string where = c.text() + " " + name_of(view) + " " + std::string(tg::name_of(dtype));
      EXPECT_EQ(r.view, view) << where;
      EXPECT_EQ(r.dtype, dtype) << where;
      EXPECT_EQ(r.status, Status::ok) << where << ": " << r.note;
      if (r.note.starts_with("not compared")) {
        EXPECT_EQ(dtype, f16) << where;  // the other dtypes have the range of f32
        continue;
      }
      std::int64_t rows = 1;  // one skipped element omits this number of comparisons
      if (!o.fast) {
        std::int64_t out = 0;
        for (const Shape& y : s.outputs) out += numel(y);
        rows = 2 + (out <= 64 ? out : 0);
      }
      EXPECT_EQ((Counts{r.checked + rows * r.skipped, r.rules, r.special + r.undecided}),
                expected_counts(c, o, view, dtype))
          << where;
    }
  }
  EXPECT_EQ(number, results.size()) << c.text();
}

TEST(GradcheckCounts, FollowFromTheShapesOfACase) {
  Options o;
  o.fast = true;
  int refused = 0;
  for (const Case& c : op_cases()) expect_counts(c, o, refused);
  EXPECT_LT(refused, 80);
}

TEST(GradcheckCounts, FollowFromTheShapesForSecondDerivatives) {
  Options o;
  o.fast = true, o.order = 2, o.dtypes = {f64}, o.views = {View::contiguous};
  int refused = 0;
  for (const Case& c : op_cases()) expect_counts(c, o, refused);
  EXPECT_LT(refused, 120);
}

// The element-by-element check is slower. So only the first sample of each op is checked.
TEST(GradcheckCounts, FollowFromTheShapesElementByElement) {
  Options o;
  o.dtypes = {f64}, o.views = {View::contiguous, View::expanded};
  int refused = 0;
  std::string last;
  for (const Case& c : op_cases())
    if (std::exchange(last, c.owner) != c.owner) expect_counts(c, o, refused);
}

// ---- If only one projection detects a fault, that projection catches it.

// Returns the component of v that is orthogonal to all of `others`.
Values orthogonal(Values v, std::vector<Values> others) {
  const auto remove = [](Values& from, const Values& along) {
    double product = 0, square = 0;
    for (std::size_t i = 0; i < from.size(); ++i)
      product += from[i] * along[i], square += along[i] * along[i];
    if (square == 0) return;
    for (std::size_t i = 0; i < from.size(); ++i) from[i] -= product / square * along[i];
  };
  for (std::size_t a = 0; a < others.size(); ++a)
    for (std::size_t b = 0; b < a; ++b) remove(others[a], others[b]);
  for (int again = 0; again < 2; ++again)
    for (const Values& o : others) remove(v, o);
  return v;
}

Tensor constant(Graph& g, const Values& v, const Shape& shape) {
  Array a(shape, f64);
  for (std::size_t i = 0; i < v.size(); ++i) a.set(static_cast<std::int64_t>(i), v[i]);
  return g.constant(a);
}

// y = x₀³ + x₁³. The gradient of x_input has an error of ⟨of_cotangent, z⟩·of_element. It occurs only if
// cotangents and directions are not orthogonal to these two vectors.
struct RankOneFault {
  std::size_t input = 0;
  Values of_cotangent, of_element;
};
Case faulty_cubes(std::int64_t n, const RankOneFault& fault) {
  const auto forward = [](const Tensors& in) {
    return Tensors{in[0] * in[0] * in[0] + in[1] * in[1] * in[1]};
  };
  const auto backward = [n, fault](const Tensors& in, const Tensors&, const Tensors& z) {
    Tensors z_in{z[0] * 3 * in[0] * in[0], z[0] * 3 * in[1] * in[1]};
    Graph& g = in[0].graph();
    if (!fault.of_element.empty())
      z_in[fault.input] = z_in[fault.input] + sum(z[0] * constant(g, fault.of_cotangent, {n})) *
                                                  constant(g, fault.of_element, {n});
    return z_in;
  };
  const CustomOp op = custom_op("cubes", {forward, backward});
  return {"cubes", "two", {{{n}}, {{n}}}, [op](DType, Device) {
            return Callable{
                {}, [op](std::span<const Tensor> x) { return op.all(x, std::source_location::current()); }};
          }};
}

Status status_of(const Case& c, bool fast) {
  Options o;
  o.dtypes = {f64}, o.views = {View::contiguous}, o.fast = fast;
  return check(c, o).at(0).status;
}

Values ones(std::size_t n) {
  return Values(n, 1.0);
}

TEST(Projections, EachCatchesAFaultThatTheOthersMiss) {
  constexpr std::int64_t n = 8;
  constexpr std::size_t all = 6;  // four directions through both inputs, and one through each input
  const Case right = faulty_cubes(n, {});
  ASSERT_EQ(status_of(right, true), Status::ok);
  Harness h(right, View::contiguous, f64, {});
  const Point x = h.draw(0);
  std::vector<Values> cotangents;
  std::vector<Point> directions;
  for (std::uint64_t i = 0; i < all; ++i) {
    cotangents.push_back(h.draw_cotangents(77 * i)[0]);
    Point d = h.draw_direction(77 * i), at = i < 4 ? x : h.draw(1);
    for (std::size_t l = 0; l < 2; ++l)
      for (std::size_t k = 0; k < d[l].size(); ++k)
        d[l][k] *= i >= 4 && i - 4 != l ? 0 : std::max(1.0, std::abs(at[l][k]));
    directions.push_back(std::move(d));
  }
  const auto without = [](std::vector<Values> v, std::size_t i) {
    v.erase(v.begin() + static_cast<std::ptrdiff_t>(i));
    return v;
  };
  for (std::size_t i = 0; i < all; ++i) {
    for (std::size_t input = 0; input < 2; ++input) {
      if (i >= 4 && i - 4 != input) continue;  // the other input is constant
      std::vector<Values> own;
      for (const Point& d : directions) own.push_back(d[input]);
      const RankOneFault by_cotangent{input, orthogonal(cotangents[i], without(cotangents, i)), ones(n)},
          by_direction{input, ones(n), orthogonal(own[i], without(own, i))};
      EXPECT_EQ(status_of(faulty_cubes(n, by_cotangent), true), Status::mismatch) << "cotangent " << i;
      EXPECT_EQ(status_of(faulty_cubes(n, by_direction), true), Status::mismatch) << "direction " << i;
    }
  }
}

// With more than 64 outputs, only two random cotangents remain.
TEST(Projections, EachOfTwoCotangentsCatchesAFaultThatTheOtherMisses) {
  constexpr std::int64_t n = 65;
  const Case right = faulty_cubes(n, {});
  const Harness h(right, View::contiguous, f64, {});
  const std::vector<Values> cotangents{h.draw_cotangents(0)[0], h.draw_cotangents(1000)[0]};
  for (std::size_t i = 0; i < 2; ++i) {
    const RankOneFault fault{i, orthogonal(cotangents[i], {cotangents[1 - i]}), ones(n)};
    EXPECT_EQ(status_of(faulty_cubes(n, fault), false), Status::mismatch) << "cotangent " << i;
  }
}

// ---- If one input's gradient is multiplied by 1.001, the check in f64 detects it in every view.

TEST(ScaledGradients, AreCaughtForEveryInputOfEveryOp) {
  Options o;
  o.fast = true;
  int planted = 0;
  for (const Case& c : op_cases()) {
    if (c.text() != "matmul/linear" && c.text() != "where/broadcast" && c.text() != "flash_attn/sink" &&
        c.text() != "index_add/rows" && c.text() != "rope/half split")
      continue;
    std::map<std::string, std::size_t> scaled;
    for (const Mutant& m : mutate(c, o)) {
      if (!m.fault.starts_with("scale of floating input")) continue;
      const bool is_half = m.result.dtype == bf16 || m.result.dtype == f16;
      EXPECT_TRUE(m.fate == Mutant::caught || (is_half && m.fate == Mutant::equivalent))
          << c.text() << " " << m.fault << " " << name_of(m.result.view) << " " << tg::name_of(m.result.dtype)
          << ": " << m.why;
      ++scaled[name_of(m.result.view) + " " + std::string(tg::name_of(m.result.dtype))];
    }
    std::size_t settings = 3;  // the other dtypes
    for (View view : all_views) settings += view != View::contiguous && view_changes(c, view);
    EXPECT_EQ(scaled.size(), settings) << c.text();
    for (const auto& [setting, inputs] : scaled)
      EXPECT_EQ(inputs, shapes_of(c).inputs.size()) << c.text() << " " << setting;
    ++planted;
  }
  EXPECT_EQ(planted, 5);
}

// ---- Ops state the lengths of their sums. These lengths bound the errors of every instruction set.

// If an element depends on several elements of an input, it is a sum of several terms.
TEST(Roundings, AreStatedByEveryOpThatAddsUpTerms) {
  int sums = 0;
  for (const Case& c : op_cases()) {
    std::int64_t inputs = 0;
    for (const SampleInput& in : c.inputs) inputs += numel(in.shape);
    if (inputs > 1000 || c.expected || shapes_of(c).outputs.empty()) continue;
    Harness h(c, View::contiguous, f64, {.forward_only = true});
    const Point x = h.draw(0);
    h.set(x);
    const Point y = h.outputs();
    std::int64_t most = 0;
    for (std::size_t l = 0; l < x.size(); ++l) {
      if (!h.leaves()[l].floating) continue;
      std::vector<std::vector<std::int64_t>> depends;
      for (const Values& v : y) depends.emplace_back(v.size(), 0);
      for (std::size_t k = 0; k < x[l].size(); ++k) {
        h.set(l, k, x[l][k] + 1e-3);
        const Point moved = h.outputs();
        h.set(l, k, x[l][k]);
        for (std::size_t o = 0; o < y.size(); ++o)
          for (std::size_t i = 0; i < y[o].size(); ++i)
            if (moved[o][i] != y[o][i]) most = std::max(most, ++depends[o][i]);
      }
    }
    // A sum of sums has fewer consecutive roundings than it has terms.
    const double stated = h.forward_roundings().all;
    EXPECT_LE(static_cast<double>(most), std::max(1.0, stated * stated))
        << c.text() << " states " << stated << " roundings";
    sums += most > 1;
  }
  EXPECT_GT(sums, 100);
}

TEST(Roundings, AreTheLengthsOfSums) {
  const std::map<std::string, double> expected{{"matmul/2d", 3 + 1},
                                               {"matmul_in_units/of k", 199 + 4},
                                               {"sum/all", 12 + 1},
                                               {"mean/rows", 5 + 1},
                                               {"cumsum/middle", 4},

                                               {"rms_norm/plain", 2 * 19 + 6},
                                               {"exp/3d", 1}};
  std::size_t seen = 0;
  for (const Case& c : op_cases()) {
    const auto e = expected.find(c.text());
    if (e == expected.end()) continue;
    ++seen;
    EXPECT_EQ(Harness(c, View::contiguous, f64, {.forward_only = true}).forward_roundings().all, e->second)
        << c.text();
  }
  EXPECT_EQ(seen, 7u);
}

// Repeated inputs give equal terms. So the errors of partial sums have the same sign and grow fastest. CTest
// runs this test with each instruction set.
TEST(LongSums, EqualTermsStayWithinTheBound) {
  constexpr std::int64_t n = 531;  // several vectors of any instruction set, and a partial one
  const auto function = [](const char* name, std::vector<SampleInput> inputs, auto f) {
    return Case{"long_sum", name, std::move(inputs), [f](DType, Device) {
                  return Callable{{}, [f](std::span<const Tensor> x) { return Tensors{f(x)}; }};
                }};
  };
  const Fill positive{Fill::uniform, 0.5, 2}, classes{Fill::index, 0, static_cast<double>(n)};
  const std::vector<Case> cases{
      function("row", {{{2, n}}}, [](auto x) { return sum(x[0], {1}); }),
      function("column", {{{n, 2}}}, [](auto x) { return sum(x[0], {0}); }),
      function("mean", {{{2, n}, positive}}, [](auto x) { return mean(x[0], {1}); }),
      function("of a chain", {{{2, n}}}, [](auto x) { return sum(x[0] * x[0] + x[0], {1}); }),
      function("product", {{{2, n}}, {{n, 3}}}, [](auto x) { return matmul(x[0], x[1]); }),
      function("row by matrix", {{{1, n}}, {{n, 3}}}, [](auto x) { return matmul(x[0], x[1]); }),
      function("running", {{{2, n}}}, [](auto x) { return cumsum(x[0], 1); }),
      function("softmax", {{{2, n}}}, [](auto x) { return softmax(x[0], 1); }),
      function("logsumexp", {{{2, n}}}, [](auto x) { return logsumexp(x[0], {1}); }),
      function("layer norm", {{{2, n}}, {{n}}}, [](auto x) { return layer_norm(x[0], x[1]); }),
      function("norm of rows", {{{n, 2}}, {{2}}}, [](auto x) { return rms_norm(x[0], x[1]); }),
      function("loss", {{{2, n}}, {{2}, classes, i64}}, [](auto x) { return cross_entropy(x[0], x[1]); }),
      function("attention", {{{1, 1, 3, 4}}, {{1, 1, n, 4}}, {{1, 1, n, 4}}},
               [](auto x) { return flash_attn(x[0], x[1], x[2]).o; })};
  Options o;
  o.fast = true, o.dtypes = {f32}, o.views = {View::contiguous, View::expanded, View::expanded_last};
  for (const Case& c : cases)
    for (o.seed = 0; o.seed < 5; ++o.seed)
      for (const Result& r : check(c, o))
        EXPECT_EQ(r.status, Status::ok) << c.name << " " << name_of(r.view) << ", seed " << o.seed << ": "
                                        << r.ratio << " of the bound, " << r.worst.where;
}

}  // namespace
