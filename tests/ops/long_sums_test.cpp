// Checks the error bounds of sums with many terms. Covers running sums, sums over axes, sums by index, GEMMs
// with a long k, and norms of numbers whose squares are out of range.
#include <limits>

#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

// 2^24 is followed by ones. In f32, a running sum would stop at 2^24.
TEST(CumSum, AddsSmallNumbersToALargeSum) {
  constexpr std::int64_t n = 3000;
  for (const bool reverse : {false, true})
    for (const View view : {View::contiguous, View::transposed, View::sliced}) {
      Graph g;
      Given x = given(g, {n, 3}, f32, view);
      const Tensor first =
          cast(equal(expand(reshape(arange(g, 0, n, 1, f32), {n, 1}), {n, 3}), reverse ? n - 1. : 0.), f32);
      const Tensor all = 0 * x.tensor + 1 + first * (0x1p24 - 1);
      const auto v = run_checked(
          {cumsum(all, 0, reverse), cumsum(contiguous(transpose(all, 0, 1)), 1, reverse)}, {x.feed()});
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t at = reverse ? n - 1 - i : i;
        const auto expected = static_cast<float>(0x1p24 + static_cast<double>(i));
        ASSERT_EQ(v[0].at(at * 3), expected) << i;
        ASSERT_EQ(v[1].at(at), expected) << i;
      }
    }
}

// If f64 can represent the exact sum, each result must be the exact sum after one rounding.
TEST(CumSum, RoundsEachSumOnce) {
  for (const DType dtype : {f32, bf16, f16}) {
    constexpr std::int64_t n = 2000;
    Graph g;
    const Given x = given(g, {n}, dtype, View::contiguous, 5, -1, 1);
    const Array y = run_checked({cumsum(x.tensor, 0)}, {x.feed()})[0];
    Array once({1}, dtype);
    double sum = 0;  // exact, because numbers are below 2^11 in steps of at least 2^-32
    for (std::int64_t i = 0; i < n; ++i) {
      sum += x.values[static_cast<std::size_t>(i)];
      once.set(0, sum);
      ASSERT_EQ(y.at(i), once.at(0)) << name_of(dtype) << " " << i;
    }
  }
}

TEST(CumSum, GradientAddsSmallNumbersToALargeSum) {
  constexpr std::int64_t n = 3000;
  Graph g;
  const Tensor x = g.input("x", {n}), z = g.input("z", {n});
  std::vector<float> zs(n, 1);
  zs.back() = 0x1p24f;
  const Array y = eval(gradients(cumsum(x, 0), {x}, z)[0], {{z, zs}});
  for (std::int64_t i = 0; i < n; ++i)
    ASSERT_EQ(y.at(i), static_cast<float>(0x1p24 + static_cast<double>(n - 1 - i)));
}

// Adds 0.1 to one element 2^22 times. In a running sum, all rounding errors would have the same sign.
TEST(SumsByIndex, MillionsOfSlicesStayWithinTheirBound) {
  constexpr std::int64_t n = std::int64_t{1} << 22;
  Graph g;
  const Tensor x = full(g, {2, 1}, 0), src = full(g, {n, 1}, 0.1f), to = full(g, {n}, 1, i64);
  const Tensor by_element = scatter_add(full(g, {2}, 0), 0, to, reshape(src, {n}));
  const auto v = run_checked({index_add(x, 0, to, src), by_element}, {});
  const double expected = double{0.1f} * static_cast<double>(n);
  for (const Array& y : v) {
    EXPECT_EQ(y.at(0), 0);
    EXPECT_NEAR(y.at(1), expected, 0x1.01p12 * 0x1p-24 * expected);
  }
}

// Each sum has a single result. It is computed in more parts than the bound in the header assumes.
TEST(LongSums, OneResultStaysWithinItsBound) {
  constexpr std::int64_t n = std::int64_t{1} << 22;
  const double bound = (n / 0x1p15 + 0x1p10) * 0x1p-24;
  Graph g;
  const Tensor x = full(g, {n}, 0.1f), rows = reshape(x, {n / 2, 2});
  const Tensor odd = slice(reshape(x, {n / 8, 8}), 1, 0, 5);  // these axes do not merge
  const double number = double{0.1f}, expected = number * static_cast<double>(n);
  const auto v = run_checked(
      {sum(x), mean(x), sum(rows, {0}), sum_squares(x), sum(odd), sum(exp(x)), logsumexp(x), mean(x * 2)},
      {});
  const double sums[] = {expected,
                         number,
                         expected / 2,
                         number * expected,
                         expected * 5 / 8,
                         std::exp(number) * static_cast<double>(n),
                         number + std::log(static_cast<double>(n)),
                         2 * number};
  for (std::size_t k = 0; k < v.size(); ++k)
    EXPECT_NEAR(v[k].at(0), sums[k], (bound + 0x1p-22) * sums[k]) << k;
}

// Tests GEMMs with a long k: few and many rows and columns, in each memory order.
TEST(LongSums, ProductsStayWithinTheirBound) {
  for (const std::int64_t m : {1, 3, 12})
    for (const std::int64_t n : {1, 3, 12})
      for (const bool along_a : {true, false})
        for (const bool along_b : {true, false}) {
          const std::int64_t k = std::int64_t{1} << (m * n <= 9 ? 21 : 18);
          Graph g;
          const Tensor a = full(g, {m * k}, 0.1f), b = full(g, {n * k}, 0.1f);
          const Tensor y = matmul(along_a ? reshape(a, {m, k}) : transpose(reshape(a, {k, m}), 0, 1),
                                  along_b ? transpose(reshape(b, {n, k}), 0, 1) : reshape(b, {k, n}));
          const double length = static_cast<double>(k), expected = double{0.1f} * double{0.1f} * length;
          const Vector values = doubles(eval(y));
          EXPECT_NEAR(values.back(), expected, (length / 384 + 4096) * 0x1p-24 * expected)
              << m << " " << n << " " << along_a << along_b;
        }
}

// Equal extremes share a gradient. It is divided by the number of extremes, which may exceed the range of
// f16.
TEST(Extremes, MoreEqualElementsThanF16CountsShareTheGradient) {
  constexpr std::int64_t n = 70000;
  Graph g;
  const Tensor x = g.input("x", {n}, f16);
  const Array z = eval(gradients(max(x) * 1024, {x})[0], {{x, Array({n}, f16)}});
  for (const std::int64_t i : {std::int64_t{0}, n - 1}) EXPECT_NEAR(z.at(i), 1024. / n, 0x1p-11 * 1024 / n);
}

struct NormCase {
  DType dtype;
  Vector values;
  double norm;
};

TEST(Norms, AreCorrectInTheFullRange) {
  constexpr double infinity = std::numeric_limits<double>::infinity(),
                   nan = std::numeric_limits<double>::quiet_NaN();
  const NormCase cases[] = {{f32, {3e20, 4e20}, 5e20},
                            {f32, {3e-25, -4e-25}, 5e-25},
                            {f32, {3e-40, 4e-40}, 5e-40},
                            {f32, {1e20, 1e-20}, 1e20},
                            {f32, {2e38, 2e38}, 2e38 * std::sqrt(2.)},
                            {bf16, {3 * 0x1p70, 4 * 0x1p70}, 5 * 0x1p70},
                            {bf16, {3 * 0x1p-90, 4 * 0x1p-90}, 5 * 0x1p-90},
                            {f16, {30000, 40000}, 50000},
                            {f16, {3 * 0x1p-24, 4 * 0x1p-24}, 5 * 0x1p-24},
                            {f64, {3e200, 4e200}, 5e200},
                            {f64, {3e-200, 4e-200}, 5e-200},
                            {f64, {3e-310, 4e-310}, 5e-310},
                            {f64, {1e308, 1e308}, 1e308 * std::sqrt(2.)},
                            {f64, {1e200, 1, 1e-200}, 1e200},
                            {f64, {1, 1e-200}, 1},
                            {f32, {0, 0}, 0},
                            {f64, {0, 0}, 0},
                            {f32, {infinity, 1}, infinity},
                            {f64, {infinity, 1}, infinity},
                            {f32, {1e20, nan}, nan},
                            {f64, {1e200, nan}, nan},
                            {f64, {nan, 1}, nan}};
  for (const NormCase& c : cases) {
    // The large number is in the first block or a later block. The numbers may be strided.
    for (const std::int64_t before : {0, 1024, 20000}) {
      Graph g;
      const auto n = before + static_cast<std::int64_t>(c.values.size());
      const Tensor x = g.input("x", {n}, c.dtype), two = g.input("two", {n, 2}, c.dtype);
      Array xs({n}, c.dtype), twos({n, 2}, c.dtype);
      for (std::size_t i = 0; i < c.values.size(); ++i) {
        xs.set(before + static_cast<std::int64_t>(i), c.values[i]);
        twos.set(2 * (before + static_cast<std::int64_t>(i)), c.values[i]);
      }
      const Tensor blocks = block_norms({x})[0];
      const auto v = run_checked(
          {global_norm({x}), global_norm({slice(two, 1, 0, 1)}), global_norm({blocks}), squared_norm({x})},
          {{x, xs}, {two, twos}});
      for (std::size_t k = 0; k < 3; ++k) {
        const double got = v[k].at(0), size = std::abs(c.norm);
        // The error comes from rounding the numbers and the norm. If half a unit of the smallest number is
        // larger, this is the error.
        const double bound =
            std::max(4 * rounding(c.dtype == f64 ? f64 : f32) * size + rounding(c.dtype) * size,
                     c.dtype == f64 ? 1e-323 : 3e-45);
        const bool is_right = std::isnan(c.norm)                  ? std::isnan(got)
                              : std::isinf(c.norm) || c.norm == 0 ? got == c.norm
                                                                  : std::abs(got - c.norm) <= bound;
        EXPECT_TRUE(is_right) << name_of(c.dtype) << " " << c.norm << " after " << before << ", result " << k
                              << ": got " << got;
      }
      if (c.dtype == f32 && c.norm < 1e15 && c.norm > 1e-15) {
        EXPECT_NEAR(v[3].at(0), c.norm * c.norm, 1e-6 * c.norm * c.norm);
      }
    }
  }
}

TEST(Norms, GradientIsADirection) {
  for (const double size : {1., 1e20, 1e-25}) {
    Graph g;
    const Tensor x = g.input("x", {2}), y = global_norm({x});
    const Array z =
        eval(gradients(y, {x})[0],
             {{x, std::vector<float>{static_cast<float>(3 * size), static_cast<float>(4 * size)}}});
    EXPECT_NEAR(z.at(0), 0.6, 1e-6);
    EXPECT_NEAR(z.at(1), 0.8, 1e-6);
  }
  Graph g;
  const Tensor x = g.input("x", {2});
  EXPECT_EQ(eval(gradients(global_norm({x}), {x})[0], {{x, std::vector<float>{0, 0}}}).at(0), 0);
}

}  // namespace
