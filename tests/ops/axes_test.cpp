// Tests every op that has axes, for tensors with and without elements. Reductions run over each set of axes.
// They remove these axes or keep them with size 1. Other ops run along each axis. Values are compared with a
// one-line function, and gradients with difference quotients.
#include <numeric>

#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

const Shape shapes[] = {{},        {1},       {7},       {0},       {0, 3},    {2, 0},       {3, 5},
                        {0, 3, 2}, {2, 0, 3}, {2, 3, 0}, {0, 1, 0}, {3, 1, 4}, {2, 3, 1, 5}, {1, 4, 3, 2}};

// For each result of a reduction over the axes, returns the positions of the reduced elements in row-major
// order.
std::vector<std::vector<std::size_t>> groups(const Shape& shape, const Axes& axes) {
  Shape kept = shape;
  for (const std::int64_t a : axes) kept[static_cast<int>(a)] = 1;
  const Strides strides = row_major_strides(kept);
  std::vector<std::vector<std::size_t>> out(static_cast<std::size_t>(numel(kept)));
  for (std::int64_t e = 0; e < numel(shape); ++e) {
    std::int64_t rest = e, at = 0;
    for (int i = shape.size() - 1; i >= 0; --i) {
      if (!axes.contains(i)) at += rest % shape[i] * strides[i];
      rest /= shape[i];
    }
    out[static_cast<std::size_t>(at)].push_back(static_cast<std::size_t>(e));
  }
  return out;
}

double sum_of(const Vector& x) {
  return std::accumulate(x.begin(), x.end(), 0.0);
}
double variance(const Vector& x, double correction) {
  if (x.empty()) return NAN;
  const double n = static_cast<double>(x.size()), mu = sum_of(x) / n;
  double squares = 0;
  for (const double e : x) squares += (e - mu) * (e - mu);
  return squares / (n - correction);
}
bool is_large(double x) {
  return x > 0.25;
}

struct Reduction {
  const char* name;
  Tensor (*op)(const Tensor&, const Axes&, bool);
  double (*plain)(const Vector&);
  bool needs_elements = false, has_gradient = true;
};
const Reduction reductions[] = {
    {"sum", [](auto& x, auto& axes, bool keep) { return sum(x, axes, keep); }, sum_of},
    {"prod", [](auto& x, auto& axes, bool keep) { return prod(x, axes, keep); },
     [](const Vector& x) { return std::accumulate(x.begin(), x.end(), 1.0, std::multiplies<>()); }},
    {"mean", [](auto& x, auto& axes, bool keep) { return mean(x, axes, keep); },
     [](const Vector& x) { return sum_of(x) / static_cast<double>(x.size()); }},
    {"sum_squares", [](auto& x, auto& axes, bool keep) { return sum_squares(x, axes, keep); },
     [](const Vector& x) { return std::inner_product(x.begin(), x.end(), x.begin(), 0.0); }},
    {"max", [](auto& x, auto& axes, bool keep) { return max(x, axes, keep); },
     [](const Vector& x) { return *std::ranges::max_element(x); }, true},
    {"min", [](auto& x, auto& axes, bool keep) { return min(x, axes, keep); },
     [](const Vector& x) { return *std::ranges::min_element(x); }, true},
    {"var", [](auto& x, auto& axes, bool keep) { return var(x, axes, keep); },
     [](const Vector& x) { return variance(x, 1); }},
    {"var without correction", [](auto& x, auto& axes, bool keep) { return var(x, axes, keep, 0); },
     [](const Vector& x) { return variance(x, 0); }},
    {"logsumexp", [](auto& x, auto& axes, bool keep) { return logsumexp(x, axes, keep); },
     [](const Vector& x) {
       double total = 0;
       for (const double e : x) total += std::exp(e);
       return std::log(total);
     }},
    {"argmax", [](auto& x, auto& axes, bool keep) { return argmax(x, axes, keep); },
     [](const Vector& x) { return static_cast<double>(std::ranges::max_element(x) - x.begin()); }, true,
     false},
    {"argmin", [](auto& x, auto& axes, bool keep) { return argmin(x, axes, keep); },
     [](const Vector& x) { return static_cast<double>(std::ranges::min_element(x) - x.begin()); }, true,
     false},
    {"any", [](auto& x, auto& axes, bool keep) { return any(greater(x, 0.25), axes, keep); },
     [](const Vector& x) { return std::ranges::any_of(x, is_large) ? 1.0 : 0.0; }, false, false},
    {"all", [](auto& x, auto& axes, bool keep) { return all(greater(x, 0.25), axes, keep); },
     [](const Vector& x) { return std::ranges::all_of(x, is_large) ? 1.0 : 0.0; }, false, false},
};

// Like expect_values, but NaN must match NaN, and infinities must match exactly.
void expect_same(const Tensor& y, const Given& x, const Vector& expected) {
  const Vector got = doubles(run_checked({y}, {x.feed()})[0]);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    if (std::isfinite(expected[i]))
      ASSERT_NEAR(got[i], expected[i], 64 * rounding(f64) * std::max(1.0, std::abs(expected[i]))) << i;
    else
      ASSERT_TRUE(std::isnan(expected[i]) ? std::isnan(got[i]) : got[i] == expected[i]) << i << " " << got[i];
}

// An empty tensor's gradient must have the tensor's shape. Other gradients are compared with difference
// quotients.
void expect_gradient_of(const Tensor& y, const Given& x) {
  if (x.tensor.numel() > 0) return expect_gradients(weighted_sum(y * y), {x});
  const Tensor z = gradients(sum(y * y), {x.input})[0];
  EXPECT_EQ(z.shape(), x.input.shape());
  EXPECT_EQ(run_checked({z}, {x.feed()})[0].numel(), x.input.numel());
}

void check_reduction(const Reduction& r, const Shape& shape, const Axes& given_axes, View view) {
  Axes axes = given_axes, named;
  for (const std::int64_t a : given_axes) named.push_back(a % 2 == 0 ? a : a - shape.size());
  if (axes.size() == 0)  // no axes: all axes
    for (int a = 0; a < shape.size(); ++a) axes.push_back(a);
  for (const bool keep : {false, true}) {
    Graph g;
    const Given x = given(g, shape, f64, view, 3);
    const auto elements_of = groups(shape, axes);
    std::int64_t reduced_elements = 1;
    for (const std::int64_t a : axes) reduced_elements *= shape[static_cast<int>(a)];
    Vector expected;
    for (const auto& group : elements_of) {
      Vector line;
      for (const std::size_t e : group) line.push_back(x.values[e]);
      if (!line.empty() || !r.needs_elements) expected.push_back(r.plain(line));
    }
    if (reduced_elements == 0 && r.needs_elements) {
      expect_error<ShapeError>([&] { r.op(x.tensor, named, keep); }, {"axes_test.cpp"});
      continue;
    }
    Shape reduced;
    for (int a = 0; a < shape.size(); ++a)
      if (!axes.contains(a))
        reduced.push_back(shape[a]);
      else if (keep)
        reduced.push_back(1);
    const Tensor y = r.op(x.tensor, named, keep);
    ASSERT_EQ(y.shape(), reduced);
    expect_same(y, x, expected);
    const bool is_finite = std::ranges::all_of(expected, [](double e) { return std::isfinite(e); });
    if (r.has_gradient && is_finite && view == View::contiguous) expect_gradient_of(y, x);
  }
}

TEST(Axes, ReductionsMatchAFunctionOfEachGroup) {
  for (const Reduction& r : reductions)
    for (const Shape& shape : shapes)
      for (unsigned set = 0; set < 1u << shape.size(); ++set)
        for (const View view : {View::contiguous, View::sliced}) {
          Axes axes;
          for (int a = 0; a < shape.size(); ++a)
            if (set >> a & 1) axes.push_back(a);
          SCOPED_TRACE(std::string(r.name) + " of " + shape.text() + " over " + axes.text());
          check_reduction(r, shape, axes, view);
          if (HasFatalFailure()) return;
        }
}

// An op that transforms each line along an axis.
struct AlongAxis {
  const char* name;
  Tensor (*op)(const Tensor&, std::int64_t axis);
  Vector (*plain)(const Vector&);
  bool has_gradient = true;
};

// Returns unsorted indices below n with one duplicate, or no indices if n is 0.
std::vector<std::int64_t> indices(std::int64_t n) {
  if (n == 0) return {};
  return {n - 1, 0, n / 2, n - 1};
}
Tensor indices_for(const Tensor& x, std::int64_t axis) {
  return x.graph().constant(Array::of(indices(x.size(axis))));
}
// Returns numbers 1, 2, … along the axis. Except for this axis, the shape is the shape of x.
Tensor counted(const Tensor& x, std::int64_t axis, std::int64_t size, DType dtype = f64) {
  Shape shape = x.shape();
  shape[static_cast<int>(axis < 0 ? axis + shape.size() : axis)] = size;
  Shape flat = shape;
  for (std::int64_t& n : flat) n = 1;
  flat[static_cast<int>(axis < 0 ? axis + shape.size() : axis)] = size;
  return expand(view(cast(arange(x.graph(), 1, static_cast<double>(size) + 1), dtype), flat), shape);
}
std::int64_t half(std::int64_t n) {
  return n / 2;
}

const AlongAxis along_axis[] = {
    {"softmax", [](auto& x, auto axis) { return softmax(x, axis); },
     [](const Vector& x) {
       Vector y;
       double total = 0;
       for (const double e : x) total += std::exp(e);
       for (const double e : x) y.push_back(std::exp(e) / total);
       return y;
     }},
    {"log_softmax", [](auto& x, auto axis) { return log_softmax(x, axis); },
     [](const Vector& x) {
       Vector y;
       double total = 0;
       for (const double e : x) total += std::exp(e);
       for (const double e : x) y.push_back(e - std::log(total));
       return y;
     }},
    {"cumsum", [](auto& x, auto axis) { return cumsum(x, axis); },
     [](const Vector& x) {
       Vector y(x.size());
       std::partial_sum(x.begin(), x.end(), y.begin());
       return y;
     }},
    {"cumsum from the end", [](auto& x, auto axis) { return cumsum(x, axis, true); },
     [](const Vector& x) {
       Vector y(x.size());
       std::partial_sum(x.rbegin(), x.rend(), y.rbegin());
       return y;
     }},
    {"flip", [](auto& x, auto axis) { return flip(x, axis); },
     [](const Vector& x) { return Vector(x.rbegin(), x.rend()); }},
    {"top_k", [](auto& x, auto axis) { return top_k(x, half(x.size(axis)), axis)[0]; },
     [](const Vector& x) {
       Vector y = x;
       std::ranges::sort(y, std::greater<>());
       y.resize(x.size() / 2);
       return y;
     }},
    {"the indices of top_k", [](auto& x, auto axis) { return top_k(x, x.size(axis), axis)[1]; },
     [](const Vector& x) {
       Vector y(x.size());
       std::iota(y.begin(), y.end(), 0);
       std::ranges::stable_sort(y, [&](double a, double b) {
         return x[static_cast<std::size_t>(a)] > x[static_cast<std::size_t>(b)];
       });
       return y;
     },
     false},
    {"slice", [](auto& x, auto axis) { return slice(x, axis, half(x.size(axis)) / 2, x.size(axis), 2); },
     [](const Vector& x) {
       Vector y;
       for (std::size_t i = x.size() / 2 / 2; i < x.size(); i += 2) y.push_back(x[i]);
       return y;
     }},
    {"slice_at",
     [](auto& x, auto axis) {
       const std::int64_t n = x.size(axis), start = half(n);
       return slice_at(x, axis, x.graph().constant(Array::of<std::int64_t>({}, {start})), n - start);
     },
     [](const Vector& x) { return Vector(x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end()); }},
    {"slice_assign",
     [](auto& x, auto axis) {
       const std::int64_t n = x.size(axis), count = half(n);
       return slice_assign(x, counted(x, axis, count), axis, n - count);
     },
     [](const Vector& x) {
       Vector y = x;
       for (std::size_t i = 0; i < x.size() / 2; ++i)
         y[x.size() - x.size() / 2 + i] = static_cast<double>(i + 1);
       return y;
     }},
    {"split and concat",
     [](auto& x, auto axis) {
       const std::int64_t n = x.size(axis), first = half(n);
       const auto parts = split(x, {first, 0, n - first}, axis);
       return concat({parts[2], parts[1], parts[0], parts[2]}, axis);
     },
     [](const Vector& x) {
       Vector y(x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
       y.insert(y.end(), x.begin(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2));
       y.insert(y.end(), x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2), x.end());
       return y;
     }},
    {"unbind and stack",
     [](auto& x, auto axis) {
       if (x.size(axis) == 0) return copy(x);
       std::vector<Tensor> parts = unbind(x, axis);
       parts.push_back(parts[0]);
       return stack(parts, axis);
     },
     [](const Vector& x) {
       Vector y = x;
       if (!x.empty()) y.push_back(x[0]);
       return y;
     }},
    {"chunk",
     [](auto& x, auto axis) {
       auto parts = chunk(x, 2, axis);
       std::ranges::reverse(parts);
       return concat(parts, axis);
     },
     [](const Vector& x) {
       const auto first = static_cast<std::ptrdiff_t>((x.size() + 1) / 2);
       Vector y(x.begin() + first, x.end());
       y.insert(y.end(), x.begin(), x.begin() + first);
       return y;
     }},
    {"index_select", [](auto& x, auto axis) { return index_select(x, axis, indices_for(x, axis)); },
     [](const Vector& x) {
       Vector y;
       for (const std::int64_t i : indices(static_cast<std::int64_t>(x.size())))
         y.push_back(x[static_cast<std::size_t>(i)]);
       return y;
     }},
    {"index_add",
     [](auto& x, auto axis) {
       const Tensor i = indices_for(x, axis);
       return index_add(x, axis, i, counted(x, axis, i.numel()));
     },
     [](const Vector& x) {
       Vector y = x;
       double number = 0;
       for (const std::int64_t i : indices(static_cast<std::int64_t>(x.size())))
         y[static_cast<std::size_t>(i)] += ++number;
       return y;
     }},
    {"index_assign",
     [](auto& x, auto axis) {
       const Tensor i = indices_for(x, axis);
       return index_assign(x, axis, i, counted(x, axis, i.numel()));
     },
     [](const Vector& x) {
       Vector y = x;
       double number = 0;
       for (const std::int64_t i : indices(static_cast<std::int64_t>(x.size())))
         y[static_cast<std::size_t>(i)] = ++number;
       return y;
     }},
    {"gather", [](auto& x, auto axis) { return gather(x, axis, counted(x, axis, half(x.size(axis)), i64)); },
     [](const Vector& x) {
       return Vector(x.begin() + (x.empty() ? 0 : 1),
                     x.begin() + (x.empty() ? 0 : 1) + static_cast<std::ptrdiff_t>(x.size() / 2));
     }},
    {"scatter_add",
     [](auto& x, auto axis) {
       const std::int64_t n = half(x.size(axis));
       return scatter_add(x, axis, counted(x, axis, n, i64), counted(x, axis, n));
     },
     [](const Vector& x) {
       Vector y = x;
       for (std::size_t i = 1; i <= x.size() / 2; ++i) y[i] += static_cast<double>(i);
       return y;
     }},
    {"pad",
     [](auto& x, auto axis) {
       Dims before, after;
       for (int a = 0; a < x.rank(); ++a)
         before.push_back(a == (axis + x.rank()) % x.rank() ? 2 : 0), after.push_back(before[a] / 2);
       return pad(x, before, after, 7);
     },
     [](const Vector& x) {
       Vector y = {7, 7};
       y.insert(y.end(), x.begin(), x.end());
       y.push_back(7);
       return y;
     }},
    {"squeeze and unsqueeze",
     [](auto& x, auto axis) {
       const Tensor one = slice(x, axis, 0, std::min<std::int64_t>(1, x.size(axis)));
       return one.size(axis) == 0 ? one : unsqueeze(squeeze(one, axis), axis);
     },
     [](const Vector& x) { return Vector(x.begin(), x.begin() + (x.empty() ? 0 : 1)); }},
};

void check_along(const AlongAxis& o, const Shape& shape, int axis, View view) {
  for (const int named : {axis, axis - shape.size()}) {
    Graph g;
    const Given x = given(g, shape, f64, view, 5, -3, 3);
    const Tensor y = o.op(x.tensor, named);
    const auto from = groups(shape, {axis});
    Shape expected_shape = shape;
    expected_shape[axis] =
        static_cast<std::int64_t>(o.plain(Vector(static_cast<std::size_t>(shape[axis]), 1)).size());
    ASSERT_EQ(y.shape(), expected_shape);
    Vector expected(static_cast<std::size_t>(y.numel()));
    const auto to = groups(expected_shape, {axis});
    for (std::size_t l = 0; l < to.size(); ++l) {
      Vector line;
      if (l < from.size())
        for (const std::size_t e : from[l]) line.push_back(x.values[e]);
      const Vector made = o.plain(line);
      for (std::size_t i = 0; i < to[l].size(); ++i) expected[to[l][i]] = made[i];
    }
    expect_same(y, x, expected);
    if (o.has_gradient && view == View::contiguous) expect_gradient_of(y, x);
  }
}

TEST(Axes, OpsAlongAnAxisMatchAFunctionOfEachLine) {
  for (const AlongAxis& o : along_axis)
    for (const Shape& shape : shapes)
      for (int axis = 0; axis < shape.size(); ++axis)
        for (const View view : {View::contiguous, View::transposed, View::sliced}) {
          SCOPED_TRACE(std::string(o.name) + " of " + shape.text() + " along " + std::to_string(axis));
          check_along(o, shape, axis, view);
          if (HasFatalFailure()) return;
        }
}

TEST(Axes, AxesOutOfRangeOrRepeatedAreRefused) {
  Graph g;
  const Tensor x = g.input("x", {2, 3}, f64);
  for (const Reduction& r : reductions)
    for (const Axes& axes : {Axes{2}, Axes{-3}, Axes{0, 0}, Axes{1, -1}})
      expect_error<Error>([&] { r.op(x, axes, false); }, {"axes_test.cpp"});
  for (const AlongAxis& o : along_axis)
    for (const std::int64_t axis : {2, -3}) {
      SCOPED_TRACE(o.name);
      if (std::string(o.name) != "pad") {  // each axis of pad has a number
        EXPECT_THROW(o.op(x, axis), Error);
      }
    }
}

}  // namespace
