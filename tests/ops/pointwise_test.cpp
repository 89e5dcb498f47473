// Compares pointwise ops with the C library in double. Covers dtypes, broadcasts, views and critical
// arguments.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include <tilegrad/tilegrad.h>
#include "tests/support/halfway_cases.h"

namespace {

using namespace tg;

constexpr double inf = std::numeric_limits<double>::infinity(),
                 nan = std::numeric_limits<double>::quiet_NaN();

struct Case {
  const char* name;
  Tensor (*op)(TensorArg);
  double (*expected)(double);
  double low, high;  // range of arguments
};

double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}
double gelu_of(double x) {
  return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
}
double gelu_tanh_of(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double silu_slope_of(double x) {
  const double s = sigmoid_of(x);
  return s * (1 + x * (1 - s));
}
double gelu_slope_of(double x) {
  return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
}
double gelu_tanh_slope_of(double x) {
  const double c = std::sqrt(2 / M_PI), t = std::tanh(c * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * c * (1 + 3 * 0.044715 * x * x);
}

const Case cases[] = {
    {"neg", neg, [](double x) { return -x; }, -3, 3},
    {"abs", abs, [](double x) { return std::fabs(x); }, -3, 3},
    {"sign", sign, [](double x) { return double((x > 0) - (x < 0)); }, -3, 3},
    {"sqrt", sqrt, [](double x) { return std::sqrt(x); }, 0, 9},
    {"rsqrt", rsqrt, [](double x) { return 1 / std::sqrt(x); }, 0.01, 9},
    {"exp", exp, [](double x) { return std::exp(x); }, -10, 10},
    {"log", log, [](double x) { return std::log(x); }, 0.01, 9},
    {"sin", sin, [](double x) { return std::sin(x); }, -9, 9},
    {"cos", cos, [](double x) { return std::cos(x); }, -9, 9},
    {"tanh", tanh, [](double x) { return std::tanh(x); }, -5, 5},
    {"erf", erf, [](double x) { return std::erf(x); }, -4, 4},
    {"sigmoid", sigmoid, sigmoid_of, -9, 9},
    {"relu", relu, [](double x) { return x > 0 ? x : 0; }, -3, 3},
    {"silu", silu, [](double x) { return x * sigmoid_of(x); }, -9, 9},
    {"gelu", gelu, gelu_of, -6, 6},
    {"gelu_tanh", gelu_tanh, gelu_tanh_of, -6, 6},
    {"silu_slope", silu_slope, silu_slope_of, -9, 9},
    {"gelu_slope", gelu_slope, gelu_slope_of, -6, 6},
    {"gelu_tanh_slope", gelu_tanh_slope, gelu_tanh_slope_of, -6, 6},
};

// Returns half a unit in the last place of the dtype, as a relative error.
double epsilon(DType t) {
  return t == f64 ? 0x1p-53 : t == f32 ? 0x1p-24 : t == f16 ? 0x1p-11 : 0x1p-8;
}

class UnaryOps : public testing::TestWithParam<Case> {};

TEST_P(UnaryOps, AgreeWithTheCLibraryInEveryFloatingTypeAndView) {
  const Case& c = GetParam();
  const std::int64_t rows = 37, cols = 61;
  for (DType dtype : {f64, f32, bf16, f16}) {
    Graph g;
    const Tensor x = g.input("x", {rows, cols}, dtype);
    const Tensor whole = c.op(x), transposed = c.op(transpose(x, 0, 1)), part = c.op(x.slice(1, 3, 50, 2)),
                 row = c.op(expand(x.slice(0, 5, 6), {4, cols}));
    Array xs({rows, cols}, dtype);
    for (std::int64_t i = 0; i < xs.numel(); ++i)
      xs.set(i, c.low + (c.high - c.low) * static_cast<double>(i) / (rows * cols));
    const auto got = eval({whole, transposed, part, row}, {{x, xs}});
    const auto check = [&](double value, std::int64_t i) {
      const double argument = xs.at(i), expected = c.expected(argument);
      // The error includes the rounding of the result, and rounding during the computation in f32 or f64.
      // Terms of the computation are at most |x| and 1.
      const double compute = dtype == f64 ? 4 * 0x1p-53 : 8 * 0x1p-24;
      const double bound = 1.01 * epsilon(dtype) * std::fabs(expected) +
                           compute * std::max({std::fabs(expected), std::fabs(argument), 1.0});
      ASSERT_NEAR(value, expected, bound) << c.name << " " << name_of(dtype) << " at " << argument;
    };
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        check(got[0].at(i * cols + j), i * cols + j);
        check(got[1].at(j * rows + i), i * cols + j);
        if (j >= 3 && j < 50 && j % 2 == 1) check(got[2].at(i * 24 + (j - 3) / 2), i * cols + j);
        if (i < 4) check(got[3].at(i * cols + j), 5 * cols + j);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Pointwise, UnaryOps, testing::ValuesIn(cases),
                         [](const auto& c) { return c.param.name; });

template <class F>
std::vector<double> on(F f, std::vector<double> a, std::vector<double> b, DType dtype = f64) {
  Graph g;
  const auto n = static_cast<std::int64_t>(a.size());
  const Tensor x = g.input("a", {n}, dtype), y = g.input("b", {n}, dtype);
  Array xs({n}, dtype), ys({n}, dtype);
  for (std::int64_t i = 0; i < n; ++i)
    xs.set(i, a[static_cast<std::size_t>(i)]), ys.set(i, b[static_cast<std::size_t>(i)]);
  const Array got = eval(f(x, y), {{x, xs}, {y, ys}});
  std::vector<double> out;
  for (std::int64_t i = 0; i < got.numel(); ++i) out.push_back(got.at(i));
  return out;
}

// If an operand is transposed relative to the result, it is read in tiles. Sizes are near multiples of the
// tile size.
TEST(Transposed, OperandsAreCombinedWithTheRightElements) {
  for (DType t : {f64, f32, bf16, i64, i32, u8}) {
    for (std::int64_t rows : {8, 31, 64, 70}) {
      const std::int64_t cols = 45;
      Graph g;
      const Tensor x = g.input("x", {2, cols, rows}, t), y = g.input("y", {2, rows, cols}, t),
                   z = g.input("z", {rows, 1}, t);
      Array xs({2, cols, rows}, t), ys({2, rows, cols}, t), zs({rows, 1}, t);
      for (std::int64_t i = 0; i < xs.numel(); ++i)
        xs.set(i, static_cast<double>(i % 61)), ys.set(i, static_cast<double>(i % 17));
      for (std::int64_t i = 0; i < rows; ++i) zs.set(i, static_cast<double>(i));
      for (int threads : {1, 2}) {
        const Array got = eval(y + transpose(x, 1, 2) + z, {{x, xs}, {y, ys}, {z, zs}}, {.threads = threads});
        for (std::int64_t b = 0; b < 2; ++b)
          for (std::int64_t r = 0; r < rows; ++r)
            for (std::int64_t c = 0; c < cols; ++c)
              ASSERT_EQ(got.at((b * rows + r) * cols + c),
                        xs.at((b * cols + c) * rows + r) + ys.at((b * rows + r) * cols + c) + zs.at(r))
                  << name_of(t) << " " << rows << " at " << b << ", " << r << ", " << c;
      }
    }
  }
}

// Large results bypass the caches.
TEST(Large, ResultsAreComplete) {
  const std::int64_t n = 2100;
  Graph g;
  const Tensor x = g.input("x", {n, n});
  Array xs({n, n}, f32);
  for (std::int64_t i = 0; i < xs.numel(); ++i) xs.data<float>()[i] = static_cast<float>(i);
  for (int threads : {1, 2}) {
    const auto got = eval({x + 1, contiguous(transpose(x, 0, 1))}, {{x, xs}}, {.threads = threads});
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        ASSERT_EQ(got[0].data<float>()[i * n + j], xs.data<float>()[i * n + j] + 1);
        ASSERT_EQ(got[1].data<float>()[j * n + i], xs.data<float>()[i * n + j]);
      }
    }
  }
}

using Values = std::vector<double>;

TEST(Arithmetic, WorksOnEveryNumericType) {
  for (DType t : {f64, f32, bf16, f16, i64, i32, u8}) {
    EXPECT_EQ(on(add, {1, 2, 3}, {4, 5, 6}, t), (Values{5, 7, 9})) << name_of(t);
    EXPECT_EQ(on(sub, {9, 8, 7}, {4, 5, 6}, t), (Values{5, 3, 1})) << name_of(t);
    EXPECT_EQ(on(mul, {1, 2, 3}, {4, 5, 6}, t), (Values{4, 10, 18})) << name_of(t);
    EXPECT_EQ(on(maximum, {1, 7, 3}, {4, 5, 3}, t), (Values{4, 7, 3})) << name_of(t);
    EXPECT_EQ(on(minimum, {1, 7, 3}, {4, 5, 3}, t), (Values{1, 5, 3})) << name_of(t);
    EXPECT_EQ(on(less, {1, 7, 3}, {4, 5, 3}, t), (Values{1, 0, 0})) << name_of(t);
    EXPECT_EQ(on(greater_equal, {1, 7, 3}, {4, 5, 3}, t), (Values{0, 1, 1})) << name_of(t);
  }
  EXPECT_EQ(on([](TensorArg a, TensorArg b) { return tg::div(a, b); }, {1, 6, -3}, {4, 3, 2}),
            (Values{0.25, 2, -1.5}));
  EXPECT_EQ(on([](TensorArg a, TensorArg b) { return tg::pow(a, b); }, {2, 9, -2}, {10, 0.5, 3}),
            (Values{1024, 3, -8}));
}

TEST(Arithmetic, SmallIntegersWrapAround) {
  EXPECT_EQ(on(add, {250}, {10}, u8), (Values{4}));
  EXPECT_EQ(on(mul, {1 << 30}, {4}, i32), (Values{0}));
  Graph g;  // a fused step might keep more bits
  const Tensor x = g.input("x", {1}, i32), y = g.input("y", {1}, u8);
  const auto v = eval({cast((x + x), i64) * 1, cast(y + y, i64)},
                      {{x, std::vector<std::int32_t>{1 << 30}}, {y, std::vector<std::uint8_t>{200}}});
  EXPECT_EQ(v[0].item<std::int64_t>(), -(1LL << 31));
  EXPECT_EQ(v[1].item<std::int64_t>(), 144);
}

TEST(Arithmetic, PromotesMixedTypes) {
  Graph g;
  const Tensor h = g.input("h", {2}, bf16), s = g.input("s", {2}, f32), d = g.input("d", {2}, f64),
               i = g.input("i", {2}, i32);
  EXPECT_EQ((h + s).dtype(), f32);
  EXPECT_EQ((h + g.input("k", {2}, f16)).dtype(), f32);
  EXPECT_EQ((s * d).dtype(), f64);
  EXPECT_EQ((i * h).dtype(), bf16);
  EXPECT_EQ((h * 2.5).dtype(), bf16);
  EXPECT_EQ((i + 3).dtype(), i32);
  EXPECT_THROW(i * 0.5, DTypeError);  // this would truncate
  EXPECT_THROW(exp(i), DTypeError);
  EXPECT_THROW(div(i, i), DTypeError);
}

// Some functions become constant or linear for large |x|. So slopes and curvatures are known there. But the
// polynomials in the formulas overflow there.
TEST(Extremes, DerivativesOfHugeNumbersAreTheirLimits) {
  struct Function {
    const char* name;
    Tensor (*f)(TensorArg);
    double left, right;  // the slopes at −∞ and ∞
  };
  const Function functions[] = {
      {"tanh", tanh, 0, 0}, {"erf", erf, 0, 0},   {"sigmoid", sigmoid, 0, 0},    {"relu", relu, 0, 1},
      {"silu", silu, 0, 1}, {"gelu", gelu, 0, 1}, {"gelu_tanh", gelu_tanh, 0, 1}};
  const double infinity = INFINITY;
  for (const Function& f : functions)
    for (DType dtype : {f64, f32, bf16, f16}) {
      const double most = dtype == f64 ? 1e308 : dtype == f16 ? 65504 : 3e38;
      Graph g;
      Values x;
      for (double at : {1e3, 1e4, 6e4, 2e13, 1e19, 1e20, most, infinity})
        if (at <= most || at == infinity) x.push_back(at), x.push_back(-at);
      const Tensor in = g.input("x", {static_cast<std::int64_t>(x.size())}, dtype);
      Array values(in.shape(), dtype);
      for (std::size_t i = 0; i < x.size(); ++i) values.set(static_cast<std::int64_t>(i), x[i]);
      std::vector<Tensor> all{f.f(in)};
      while (all.size() < 5) all.push_back(gradients(sum(all.back()), {in})[0]);
      const auto got = eval(all, {{in, values}});
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        const double slope = x[i] < 0 ? f.left : f.right;
        EXPECT_FALSE(std::isnan(got[0].at(at))) << f.name << " " << name_of(dtype) << " " << x[i];
        EXPECT_NEAR(got[1].at(at), slope, 1e-29)  // Φ(−20) of gelu in f32
            << f.name << " " << name_of(dtype) << " " << x[i];
        for (std::size_t order = 2; order < all.size(); ++order)
          EXPECT_EQ(got[order].at(at), 0) << f.name << " " << name_of(dtype) << " " << x[i] << " " << order;
      }
    }
}

TEST(Extremes, NaNStaysNaNInEveryDerivative) {
  for (Tensor (*f)(TensorArg) : {tanh, erf, sigmoid, silu, gelu, gelu_tanh})
    for (DType dtype : {f64, f32, bf16, f16}) {
      Graph g;
      const Tensor x = g.input("x", {1}, dtype);
      Array value(x.shape(), dtype);
      value.set(0, NAN);
      std::vector<Tensor> all{f(x)};
      while (all.size() < 3) all.push_back(gradients(sum(all.back()), {x})[0]);
      for (const Array& a : eval(all, {{x, value}})) EXPECT_TRUE(std::isnan(a.at(0)));
    }
}

// For any b, ∂²(aᵇ)/∂a∂b = aᵇ⁻¹·(1 + b·log a). If the exponent is an integer, all derivatives with respect to
// a exist at a = 0.
TEST(Extremes, DerivativesOfPowersExistAtExponentZeroAndBaseZero) {
  Graph g;
  const Tensor a = g.input("a", {3}, f64), b = g.input("b", {3}, f64);
  const Tensor by_a = gradients(sum(pow(a, b)), {a})[0];
  const auto cross = eval(gradients(sum(by_a), {b})[0], {{a, Values{2, 4, 0.5}}, {b, Values{0, 0, 1}}});
  const Values expected{0.5, 0.25, 1 + std::log(0.5)};
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(cross.at(i), expected[static_cast<std::size_t>(i)], 1e-15);

  for (DType dtype : {f64, f32, bf16, f16})
    for (int exponent = 0; exponent < 5; ++exponent) {
      Graph h;
      const Tensor x = h.input("x", {4}, dtype);
      Array at(x.shape(), dtype);
      for (int i = 0; i < 4; ++i) at.set(i, std::array{0., -0., 1e-40, 2.}[static_cast<std::size_t>(i)]);
      std::vector<Tensor> all{pow(x, exponent)};
      while (all.size() < 6) all.push_back(gradients(sum(all.back()), {x})[0]);
      const auto got = eval(all, {{x, at}});
      double factor = 1;
      for (int order = 0; order < 6; ++order) {
        const double at_zero = order == exponent ? factor : 0, left = exponent - order;
        EXPECT_EQ(got[static_cast<std::size_t>(order)].at(0), at_zero) << exponent << " " << order;
        EXPECT_EQ(got[static_cast<std::size_t>(order)].at(1), at_zero) << exponent << " " << order;
        EXPECT_EQ(got[static_cast<std::size_t>(order)].at(3), factor * (factor == 0 ? 0 : std::pow(2, left)))
            << exponent << " " << order;
        if (order < 2) {
          EXPECT_FALSE(std::isnan(got[static_cast<std::size_t>(order)].at(2))) << exponent;
        }
        factor *= left;
      }
    }
}

TEST(Extremes, MaximumAndMinimumPropagateNaN) {
  for (double v : on(maximum, {nan, 1, nan}, {1, nan, nan})) EXPECT_TRUE(std::isnan(v));
  for (double v : on(minimum, {nan, 1, nan}, {1, nan, nan}, f32)) EXPECT_TRUE(std::isnan(v));
}

TEST(Extremes, InfinitiesAndOverflowMatchTheCLibrary) {
  const auto unary = [](Tensor (*f)(TensorArg), Values x, DType t) {
    return on([f](const Tensor& a, const Tensor&) { return f(a); }, x, x, t);
  };
  for (DType t : {f64, f32}) {
    EXPECT_EQ(unary(exp, {-inf, inf, -1e4, 1e4}, t), (Values{0, inf, 0, inf}));
    EXPECT_EQ(unary(log, {0, inf}, t), (Values{-inf, inf}));
    EXPECT_EQ(unary(tanh, {-inf, inf, 100}, t), (Values{-1, 1, 1}));
    EXPECT_EQ(unary(sigmoid, {-inf, inf, -1e4}, t), (Values{0, 1, 0}));
    EXPECT_EQ(unary(erf, {-inf, inf}, t), (Values{-1, 1}));
    for (auto f : {exp, log, tanh, sigmoid, erf, relu, gelu, silu, sqrt, abs, sign, neg})
      EXPECT_TRUE(std::isnan(unary(f, {nan}, t)[0]));
    EXPECT_TRUE(std::isnan(unary(log, {-1}, t)[0]));
  }
}

// Some numbers are near 2^16, where vectors switch to the C library. Others are far larger. Small numbers are
// next to them.
TEST(Extremes, SinesOfLargeNumbersMatchTheCLibrary) {
  Values x;
  for (const double size : {1e3, 1e5, 1e7, 1e8, 6e8, 1e10, 1e20, 1e38})  // vectors of one magnitude
    for (int i = 0; i < 32; ++i) x.push_back(static_cast<float>((i % 2 ? 1 : -1) * size * (1 + 0.013 * i)));
  for (int i = -40; i < 40; ++i) x.push_back(65536 + i);
  const Values s = on([](const Tensor&a, const Tensor&) { return sin(a); }, x, x, f32),
               c = on([](const Tensor&a, const Tensor&) { return cos(a); }, x, x, f32);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(s[i], std::sin(x[i]), 2 * 0x1p-24) << x[i];
    EXPECT_NEAR(c[i], std::cos(x[i]), 2 * 0x1p-24) << x[i];
  }
}

TEST(Where, IsIndependentOfTheUnselectedOperand) {
  Graph g;
  const Tensor x = g.input("x", {4}, f32);
  const Tensor safe = where(greater(x, 0), log(x), 0);
  EXPECT_EQ(eval(safe, {{x, std::vector<float>{-1, 0, 1, -2}}}).values<float>(),
            (std::vector<float>{0, 0, 0, 0}));
}

TEST(Clamp, KeepsTheGradientOnTheClosedInterval) {
  Graph g;
  const Tensor x = g.input("x", {5}, f64), y = clamp(x, -1, 2);
  const auto v = eval({y, gradients(sum(y), {x})[0]}, {{x, Values{-2, -1, 0, 2, 3}}});
  EXPECT_EQ(v[0].values<double>(), (Values{-1, -1, 0, 2, 2}));
  EXPECT_EQ(v[1].values<double>(), (Values{0, 1, 1, 1, 0}));
  EXPECT_THROW(clamp(x, 2, 1), Error);
}

// Returns the gradients of f with respect to a and b at the given points, for a cotangent of 1.
template <class F>
std::pair<Values, Values> gradients_on(F f, const Values& a, const Values& b, DType dtype = f64) {
  Graph g;
  const auto n = static_cast<std::int64_t>(a.size());
  const Tensor x = g.input("a", {n}, dtype), y = g.input("b", {n}, dtype);
  const auto z = gradients(sum(f(x, y)), {x, y});
  const std::vector<Array> v =
      eval({z[0].to(f64), z[1].to(f64)}, {{x, Array::of(a).to(dtype)}, {y, Array::of(b).to(dtype)}});
  return {v[0].values<double>(), v[1].values<double>()};
}

TEST(Extremes, ATieHalvesTheGradient) {
  for (const DType t : {f64, f32, bf16, f16}) {
    const auto [most_a, most_b] = gradients_on(maximum, {2, 1, 1, 0, -0.0}, {1, 2, 1, 0, 0}, t);
    EXPECT_EQ(most_a, (Values{1, 0, 0.5, 0.5, 0.5})) << name_of(t);
    EXPECT_EQ(most_b, (Values{0, 1, 0.5, 0.5, 0.5})) << name_of(t);
    const auto [least_a, least_b] = gradients_on(minimum, {2, 1, 1, 0, -0.0}, {1, 2, 1, 0, 0}, t);
    EXPECT_EQ(least_a, (Values{0, 1, 0.5, 0.5, 0.5})) << name_of(t);
    EXPECT_EQ(least_b, (Values{1, 0, 0.5, 0.5, 0.5})) << name_of(t);
  }
}

TEST(Kinks, HaveTheDocumentedGradient) {
  const auto at = [](Tensor (*f)(TensorArg), const Values& x) {
    return gradients_on([f](const Tensor& a, const Tensor& b) { return f(a) + 0 * b; }, x, x).first;
  };
  EXPECT_EQ(at(relu, {-1, -0.0, 0, 1e-300}), (Values{0, 0, 0, 1}));
  EXPECT_EQ(at(abs, {-2, 0, 3}), (Values{-1, 0, 1}));
  EXPECT_EQ(at(sign, {-2, 0, 3}), (Values{0, 0, 0}));
}

// Tests b·a^(b - 1) and a^b·log a at points where they are 0·∞. 0⁰ = 1 does not depend on a, and 0^b is 0 for
// all b > 0.
TEST(Pow, HasFiniteGradientsAtABaseOfZero) {
  const auto [za, zb] = gradients_on(tg::pow, {0, 0, 0, 2, 2}, {0, 1, 2, 0, 1});
  EXPECT_EQ(za, (Values{0, 1, 0, 0, 1}));
  EXPECT_EQ(Values(zb.begin(), zb.begin() + 3), (Values{0, 0, 0}));
  EXPECT_NEAR(zb[3], std::log(2.0), 1e-15);
  EXPECT_NEAR(zb[4], 2 * std::log(2.0), 1e-15);
  EXPECT_EQ(on(tg::pow, {0, 0, 0}, {0, 1, 2}), (Values{1, 0, 0}));
}

TEST(Logic, WorksOnBooleansAndNumbers) {
  EXPECT_EQ(on(logical_and, {0, 1, 2}, {1, 0, 3}), (Values{0, 0, 1}));
  EXPECT_EQ(on(logical_or, {0, 1, 0}, {1, 0, 0}, i32), (Values{1, 1, 0}));
  EXPECT_EQ(on([](const Tensor& a, const Tensor& b) { return logical_not(equal(a, b)); }, {1, 2}, {1, 3}),
            (Values{0, 1}));
}

TEST(Cast, RoundsToNearestEvenAndTruncatesToIntegers) {
  Graph g;
  const Tensor x = g.input("x", {4}, f32);
  const std::vector<Array> v =
      eval({cast(x, bf16), cast(x, f16), cast(x, i32), cast(x, boolean), cast(cast(x, bf16), f32) * 1},
           {{x, std::vector<float>{1.00390625f, -2.75f, 0, 3.01171875f}}});
  const auto values = [](const Array& a) {
    Values out;
    for (int i = 0; i < 4; ++i) out.push_back(a.at(i));
    return out;
  };
  EXPECT_EQ(values(v[0]), (Values{1, -2.75, 0, 3.015625}));
  EXPECT_EQ(values(v[1]), (Values{1.00390625, -2.75, 0, 3.01171875}));
  EXPECT_EQ(values(v[2]), (Values{1, -2, 0, 3}));
  EXPECT_EQ(values(v[3]), (Values{1, 1, 0, 1}));
  EXPECT_EQ(values(v[4]), values(v[0]));  // a fused step rounds at the cast
}

// Tests a cast, a fused step with a 16-bit result, and a non-contiguous tensor.
TEST(Cast, HalfwayCasesRoundToEven) {
  const std::vector<float> cases = halfway_cases();
  const auto n = static_cast<std::int64_t>(cases.size());
  Graph g;
  const Tensor x = g.input("x", {n, 2}, f32), one = slice(x, 1, 0, 1);
  Array xs({n, 2}, f32);
  for (std::int64_t i = 0; i < n; ++i) xs.data<float>()[2 * i] = cases[static_cast<std::size_t>(i)];
  const Tensor whole = contiguous(one);
  const auto v = eval({cast(whole, bf16), cast(whole, f16), cast(one, bf16), cast(one, f16),
                       cast(one * 1, bf16), cast(one * 1, f16), cast(cast(one, bf16), f32) * 1},
                      {{x, xs}});
  for (std::int64_t i = 0; i < n; ++i) {
    const float f = cases[static_cast<std::size_t>(i)];
    const auto b = static_cast<float>(bfloat16(f)), h = static_cast<float>(float16(f));
    for (const std::size_t k : {0, 2, 4, 6}) ASSERT_EQ(v[k].at(i), b) << "bf16 of " << f << ", result " << k;
    for (const std::size_t k : {1, 3, 5}) ASSERT_EQ(v[k].at(i), h) << "f16 of " << f << ", result " << k;
  }
}

// Each sum is a number plus half the distance to the next number. These sums are rounded only when the result
// is stored.
template <class Half>
void expect_sums_to_round_to_even(DType dtype) {
  Values a, b, expected;
  for (const auto& [low, high] : neighbours<Half>()) {
    const float half = high / 2 - low / 2;
    if (static_cast<float>(Half(half)) != half || half == 0) continue;
    a.push_back(low), b.push_back(half), expected.push_back(static_cast<float>(Half(low + half)));
  }
  EXPECT_GT(a.size(), 30000u);
  EXPECT_EQ(on(add, a, b, dtype), expected) << name_of(dtype);
}

TEST(Arithmetic, SumsHalfwayBetweenTwoNumbersRoundToEven) {
  expect_sums_to_round_to_even<bfloat16>(bf16);
  expect_sums_to_round_to_even<float16>(f16);
}

TEST(Cast, TruncatesTowardsZeroOnBothSides) {
  const Values x = {2.75, 0.6, 0.5, -0.5, -0.6, -2.75, 3};
  for (const DType from : {f64, f32, f16})
    for (const DType to : {i64, i32}) {
      Graph g;
      const Tensor t = g.input("x", {7}, from);
      const Feed feed{t, Array::of(x).to(from)};
      const Array alone = eval(cast(t, to).to(f64), {feed}),
                  inside = eval(cast(cast(t, to) * 1, f64) + 0, {feed});
      for (std::int64_t i = 0; i < 7; ++i) {
        EXPECT_EQ(alone.at(i), std::trunc(x[static_cast<std::size_t>(i)])) << name_of(from) << name_of(to);
        EXPECT_EQ(inside.at(i), std::trunc(x[static_cast<std::size_t>(i)])) << name_of(from) << name_of(to);
      }
    }
}

// A fused step computes integers in 64 bits. A cast to a narrower type must truncate them.
TEST(Cast, NarrowIntegersWrapInsideAFusedStep) {
  Graph g;
  const Tensor x = g.input("x", {3}, i64);
  const std::int64_t big = (1LL << 32) + 5;
  const auto v = eval({cast(cast(x, u8), i64) + 0, cast(cast(x, i32), i64) + 0},
                      {{x, std::vector<std::int64_t>{300, big, 7}}});
  EXPECT_EQ(v[0].values<std::int64_t>(), (std::vector<std::int64_t>{44, 5, 7}));
  EXPECT_EQ(v[1].values<std::int64_t>(), (std::vector<std::int64_t>{300, 5, 7}));
}

TEST(Cast, KeepsLargeIntegersExact) {
  Graph g;
  const Tensor x = g.input("x", {2}, i64);
  const std::int64_t big = (1LL << 53) + 1;
  EXPECT_EQ(eval(x + 0, {{x, std::vector<std::int64_t>{big, -big}}}).values<std::int64_t>(),
            (std::vector<std::int64_t>{big, -big}));
}

TEST(Empty, TensorsPassThrough) {
  Graph g;
  const Tensor x = g.input("x", {0, 3}), row = g.input("row", {1, 3}), y = exp(x) + x * row;
  EXPECT_EQ(eval(y, {{row, std::vector<float>(3)}}).shape(), (Shape{0, 3}));
}

TEST(Rank8, TensorsWithAnyPermutationWork) {
  Graph g;
  const Shape shape{2, 1, 3, 2, 1, 2, 2, 3};
  const Tensor x = g.input("x", shape, f64), t = permute(x, {7, 2, 0, 4, 3, 6, 1, 5});
  Array xs(shape, f64);
  for (std::int64_t i = 0; i < xs.numel(); ++i) xs.set(i, static_cast<double>(i));
  const auto v = eval({contiguous(t), exp(t * 0) * t}, {{x, xs}});
  EXPECT_TRUE(v[0].same_bits(v[1]));
  EXPECT_EQ(v[0].at(1), 6);  // the last axis of the permutation is axis 5, with stride 6
}

}  // namespace
