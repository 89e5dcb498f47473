// Tests random ops. Their numbers must equal the numbers from core/base/random.h. Their distributions must be
// correct. A gradient must use the same dropout mask as the forward pass.
#include <limits>
#include <numbers>

#include <tilegrad/core/base/host_view.h>
#include <tilegrad/core/base/random.h>
#include <tilegrad/core/base/rng.h>
#include "ops/random.h"
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

std::uint64_t key_of(const Tensor& t, std::uint64_t seed, std::uint64_t step) {
  const auto& a = t.graph().node_of(t.id()).attrs.as<RandomAttrs>();
  return node_key(seed, step, static_cast<std::uint32_t>(a.stream));
}

TEST(Random, NormalPairsAreBoxMullerOfTheLibrary) {
  for (std::uint32_t i = 0; i < 2000; ++i) {
    const PhiloxBlock w =
        i < 4 ? PhiloxBlock{i % 2 ? 0xffffffffu : 0u, i / 2 ? 0xffffffffu : 0u} : philox({i, 0, 0, 0}, 9);
    double a, b;
    normal_pair(w[0], w[1], a, b);
    const double radius = std::sqrt(-2 * std::log((w[0] + 0.5) * 0x1p-32));
    const double angle = 2 * std::numbers::pi * (w[1] * 0x1p-32);
    EXPECT_NEAR(a, radius * std::cos(angle), 4e-15 * (1 + radius));
    EXPECT_NEAR(b, radius * std::sin(angle), 4e-15 * (1 + radius));
  }
}

constexpr double huge = std::numeric_limits<double>::max();

TEST(Random, TensorsMatchTheHostsNumbersBitwise) {
  for (DType dtype : float_dtypes)
    for (const auto& [low, high] : {std::pair{5., 7.}, {-1., 1.}, {-huge, huge}}) {
      if (!holds(dtype, low)) continue;
      Graph g;
      const Tensor n = normal(g, {3, 1111}, -1, 2, dtype), u = uniform(g, {3, 1111}, low, high, dtype);
      Program p = compile(g, {n, u}, {.threads = 2, .verify = true});
      p.seed(42);
      for (std::uint64_t step = 0; step < 2; ++step) {
        p.run();
        EXPECT_TRUE(p.fetch(n).same_bits(normal_array({3, 1111}, dtype, -1, 2, key_of(n, 42, step))));
        EXPECT_TRUE(p.fetch(u).same_bits(uniform_array({3, 1111}, dtype, low, high, key_of(u, 42, step))));
      }
    }
}

// Tests intervals [low, high) of each kind. Some dtypes cannot represent the ends of some intervals.
struct Interval {
  double low, high;
};
constexpr Interval intervals[] = {{0, 1},        {1, 2},         {-1, 0},
                                  {-2, -1},      {-1, 1},        {0.1, 0.7},
                                  {-0.7, -0.1},  {5, 7},         {100, 101},
                                  {0, 1e-7},     {-1e-7, 1e-7},  {3, 3.03},
                                  {1, 1.001},    {0, 60000},     {-65504, 65504},
                                  {1000, 1001},  {2048, 2050},   {1e-7, 1},
                                  {0.999, 1.01}, {-1e-3, 1e-30}, {16777216, 16777220}};

// Returns the first and the last u of each dtype and many values between them. In a narrow interval, these
// values reach every number.
TEST(Uniform, StaysInItsIntervalInEveryDType) {
  for (const DType dtype : float_dtypes)
    for (const auto& [low, high] : intervals) {
      if (!holds(dtype, low) || !holds(dtype, high)) continue;
      UniformRange range{};
      try {
        range = uniform_range(dtype, low, high);
      } catch (const Error&) {  // the interval contains no number of the dtype
        for (const double x : {low, (low + high) / 2, std::nextafter(high, low)}) {
          const double nearest = stored_number(dtype, x);
          EXPECT_FALSE(nearest >= low && nearest < high) << name_of(dtype) << " " << low << " " << high;
        }
        continue;
      }
      const double last = dtype == f64 ? 1 - 0x1p-53 : 1 - 0x1p-24;
      for (double u : {0., 0x1p-53, 0x1p-24, last, last - 0x1p-24, 0.5}) {
        const double x = stored_number(dtype, range.at(u)),
                     plain = stored_number(dtype, low + (high - low) * u);
        EXPECT_GE(x, low) << name_of(dtype) << " " << low << " " << high << " " << u;
        EXPECT_LT(x, high) << name_of(dtype) << " " << low << " " << high << " " << u;
        EXPECT_TRUE(x == plain || !(plain >= low && plain < high)) << "inside, nothing is moved";
      }
      Graph g;
      const Tensor drawn = uniform(g, {40000}, low, high, dtype);
      for (const Array& a : {eval(drawn), uniform_array({40000}, dtype, low, high, 3)})
        for (const double x : doubles(a)) ASSERT_TRUE(x >= low && x < high) << name_of(dtype) << " " << x;
    }
}

TEST(Uniform, IsFiniteOverTheWholeRange) {
  double mean = 0;
  const Vector all = doubles(uniform_array({20000}, f64, -huge, huge, 1));
  for (const double x : all) {
    ASSERT_TRUE(x >= -huge && x < huge);
    mean += x / huge / static_cast<double>(all.size());
  }
  EXPECT_NEAR(mean, 0, 5 * std::sqrt(1. / 3 / 20000));
  const double f16_most = 65504;
  for (const double x : doubles(uniform_array({20000}, f16, -f16_most, f16_most, 1))) ASSERT_LT(x, f16_most);
  EXPECT_LT(uniform_range(bf16, 0, 1e300).at(1 - 0x1p-24), std::numeric_limits<float>::max());
  // The interval contains a single number.
  for (const double x : doubles(uniform_array({100}, f64, 0, 5e-324, 1))) ASSERT_EQ(x, 0);
  for (const double x : doubles(uniform_array({100}, bf16, 0.1, 0.1, 1)))
    ASSERT_EQ(x, stored_number(bf16, 0.1));
}

TEST(Uniform, RefusesInvalidIntervals) {
  constexpr double infinity = std::numeric_limits<double>::infinity(),
                   nan = std::numeric_limits<double>::quiet_NaN();
  Graph g;
  expect_error<Error>([&] { uniform(g, {2}, 1, 0); }, {"[uniform] high is out of range: got 0"});
  expect_error<Error>([&] { uniform(g, {2}, 0, infinity); }, {"[uniform] high is out of range: got inf"});
  expect_error<Error>([&] { uniform(g, {2}, nan, 1); }, {"[uniform] low is out of range: got nan"});
  expect_error<Error>([&] { uniform(g, {2}, 1.001, 1.002, bf16); }, {"[uniform]", "bf16 has no number"});
  expect_error<Error>([&] { uniform_array({2}, f16, 1.0001, 1.0002, 1); }, {"f16 has no number"});
}

// Parameters are initialized within their bound.
TEST(Uniform, InitialValuesStayBelowTheirBound) {
  for (const DType dtype : {bf16, f16, f32}) {
    nn::Params params{7, dtype};
    const double bound = 0.125;
    for (const double x : doubles(params.create("w", {200, 300}, nn::Init::uniform(bound)).read()))
      ASSERT_TRUE(x >= -bound && x < bound) << name_of(dtype) << " " << x;
  }
}

TEST(Bernoulli, IsCertainAtZeroAndOne) {
  EXPECT_EQ(bernoulli_bound(0), 0u);
  EXPECT_GT(bernoulli_bound(1), 0xffffffffu) << "a word of ones must be true, too";
  EXPECT_LE(bernoulli_bound(1 - 0x1p-33), 0xffffffffu);
}

// No random words give larger numbers.
TEST(Normal, IsFinite) {
  for (const std::uint32_t first : {0u, 0xffffffffu})
    for (const std::uint32_t second : {0u, 0x20000000u, 0x40000000u, 0x80000000u, 0xffffffffu}) {
      double a, b;
      normal_pair(first, second, a, b);
      EXPECT_LT(std::abs(a), 6.77);
      EXPECT_LT(std::abs(b), 6.77);
    }
}

// Expects the mean and variance of n numbers to be within five standard errors of these values.
void expect_moments(const Vector& x, double mean, double variance, double kurtosis) {
  const double n = static_cast<double>(x.size());
  double m = 0, v = 0;
  for (double xi : x) m += xi / n;
  for (double xi : x) v += (xi - mean) * (xi - mean) / n;
  EXPECT_NEAR(m, mean, 5 * std::sqrt(variance / n));
  EXPECT_NEAR(v, variance, 5 * variance * std::sqrt((kurtosis - 1) / n));
}

TEST(Random, DistributionsHaveTheirMoments) {
  Graph g;
  const Shape shape{200000};
  const auto v = run_checked({uniform(g, shape, -1, 3), normal(g, shape, 2, 3), bernoulli(g, shape, 0.3),
                              randint(g, shape, -2, 4), uniform(g, shape, 0, 1, f64)},
                             {});
  expect_moments(doubles(v[0]), 1, 16. / 12, 1.8);
  expect_moments(doubles(v[1]), 2, 9, 3);
  expect_moments(doubles(v[2]), 0.3, 0.21, 0.79 / 0.21);
  expect_moments(doubles(v[3]), 0.5, 35. / 12, 1.73);
  expect_moments(doubles(v[4]), 0.5, 1. / 12, 1.8);
  for (double x : doubles(v[0])) ASSERT_TRUE(x >= -1 && x < 3);
  for (double x : doubles(v[3])) ASSERT_TRUE(x >= -2 && x <= 3 && x == std::floor(x));
}

TEST(Random, NodesSeedsAndStepsDrawDifferentNumbers) {
  Graph g;
  const Tensor a = normal(g, {64}), b = normal(g, {64});
  Program p = compile(g, {a, b});
  p.run();
  const Array a0 = p.fetch(a);
  EXPECT_FALSE(a0.same_bits(p.fetch(b)));
  p.run();
  EXPECT_FALSE(a0.same_bits(p.fetch(a)));
  p.set_step(0);
  p.run();
  EXPECT_TRUE(a0.same_bits(p.fetch(a)));
  p.set_step(0);
  p.seed(1);
  p.run();
  EXPECT_FALSE(a0.same_bits(p.fetch(a)));
}

TEST(Dropout, KeepsWithItsProbabilityAndScales) {
  for (View view : all_views)
    for (DType dtype : {f64, f32, bf16}) {
      Graph g;
      const Given x = given(g, {150, 333}, dtype, view, 1, 1, 2);
      const auto v = run_checked({dropout(x.tensor, 0.25)}, {x.feed()});
      double kept = 0;
      const Vector y = doubles(v[0]);
      for (std::size_t i = 0; i < y.size(); ++i) {
        if (y[i] == 0) continue;
        ++kept;
        ASSERT_NEAR(y[i], x.values[i] / 0.75, 3 * rounding(dtype) * y[i]);
      }
      const double n = static_cast<double>(y.size());
      EXPECT_NEAR(kept / n, 0.75, 5 * std::sqrt(0.75 * 0.25 / n));
    }
}

TEST(Dropout, GradientUsesTheSameMask) {
  Graph g;
  const Given x = given(g, {50, 40}, f64, View::contiguous, 1, 1, 2),
              c = given(g, {50, 40}, f64, View::contiguous, 2, 1, 2);
  const Tensor y = dropout(x.tensor, 0.4), z = gradients(y, {x.tensor}, c.tensor)[0];
  const auto v = run_checked({y / x.tensor, z / c.tensor}, {x.feed(), c.feed()});
  EXPECT_TRUE(close(doubles(v[0]), doubles(v[1])));
}

TEST(Dropout, IsRecomputedWithTheSameMask) {
  Graph g;
  const Given x = given(g, {50, 40});
  const auto layer = [](const std::vector<Tensor>& in) {
    return std::vector<Tensor>{sin(dropout(in[0], 0.5)) * in[0]};
  };
  const Tensor y = checkpoint(layer, {x.tensor})[0], z = gradients(sum(y), {x.tensor})[0];
  // d/dx sin(k·x)·x = k·cos(k·x)·x + sin(k·x), where k is 0 or 2.
  const auto v = run_checked({y, z}, {x.feed()});
  for (std::int64_t i = 0; i < 2000; ++i) {
    const double xi = x.values[static_cast<std::size_t>(i)], k = v[0].at(i) == 0 ? 0 : 2;
    EXPECT_NEAR(v[1].at(i), k * std::cos(k * xi) * xi + std::sin(k * xi), 1e-12);
  }
}

TEST(Dropout, MatchesItsDecomposition) {
  Graph g;
  const Given x = given(g, {50, 40});
  const Tensor y = dropout(x.tensor, 0.3);
  const Node& node = g.node_of(y.id());
  const Tensor plain = dropout_op.decompose(std::vector<Tensor>{x.tensor, g.rng()}, Attrs(node.attrs))[0];
  const auto v = run_checked({y, plain}, {x.feed()});
  EXPECT_TRUE(close(doubles(v[0]), doubles(v[1]), 1e-15));
}

TEST(Dropout, DoesNothingOutsideTrainingAndZeroesAtOne) {
  Graph g;
  const Given x = given(g, {4});
  EXPECT_EQ(dropout(x.tensor, 0.5, false), x.tensor);
  EXPECT_EQ(dropout(x.tensor, 0), x.tensor);
  EXPECT_EQ(doubles(eval(dropout(x.tensor, 1), {x.feed()})), Vector(4, 0.0));
  EXPECT_THROW(dropout(x.tensor, 1.5), Error);
}

}  // namespace
