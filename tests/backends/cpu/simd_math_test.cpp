// Compares the f32 polynomials of the vector functions with the C library in f64, at every nth bit pattern.
// This test compiles the polynomials for the baseline. The tests of pointwise kernels cover the other
// instruction sets.
#define TG_ISA simd_test
#include "backends/cpu/kernels/simd_math.h"
#include "backends/cpu/kernels/attention/few_rows.h"
#include "backends/cpu/kernels/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/support/halfway_cases.h"

namespace tg::cpu::simd_test {
namespace {

// Returns the largest error, in units in the last place, for finite |x| ≤ limit. Returns infinity if a
// special value is wrong.
template <class F, class G>
double worst_ulp(F f, G exact, float limit) {
  constexpr int W = lanes<F32>;
  double worst = 0;
  for (std::uint64_t u = 0; u < 0x100000000ull; u += W * 4099) {
    float in[W], out[W];
    for (int i = 0; i < W; ++i) {
      const auto bits = static_cast<std::uint32_t>(u + static_cast<std::uint64_t>(i) * 4099);
      std::memcpy(in + i, &bits, 4);
    }
    store(out, f(load(in)));
    for (int i = 0; i < W; ++i) {
      if (std::isfinite(in[i]) && std::fabs(in[i]) > limit) continue;
      const double expected = exact(static_cast<double>(in[i]));
      const auto rounded = static_cast<float>(expected);
      if (!std::isfinite(rounded) || !std::isfinite(out[i])) {
        const bool same = std::isnan(rounded) ? std::isnan(out[i]) : rounded == out[i];
        if (!same) return INFINITY;
        continue;
      }
      const int exponent = expected == 0 ? -126 : std::max(std::ilogb(expected), -126);
      worst = std::max(worst, std::fabs(out[i] - expected) / std::ldexp(1.0, exponent - 23));
    }
  }
  return worst;
}

constexpr float everywhere = INFINITY;

TEST(SimdMath, Exp2) {
  EXPECT_LE(worst_ulp([](F32 x) { return exp2(x); }, [](double x) { return std::exp2(x); }, everywhere), 2);
}
TEST(SimdMath, Exp) {
  EXPECT_LE(worst_ulp([](F32 x) { return exp(x); }, [](double x) { return std::exp(x); }, everywhere), 2);
}
TEST(SimdMath, Log) {
  EXPECT_LE(worst_ulp([](F32 x) { return log(x); }, [](double x) { return std::log(x); }, everywhere), 3);
}
TEST(SimdMath, Tanh) {
  EXPECT_LE(worst_ulp([](F32 x) { return tanh(x); }, [](double x) { return std::tanh(x); }, everywhere), 2);
}
TEST(SimdMath, Erf) {
  EXPECT_LE(worst_ulp([](F32 x) { return erf(x); }, [](double x) { return std::erf(x); }, everywhere), 2);
}
TEST(SimdMath, NormalDistribution) {
  constexpr int W = lanes<F32>;
  for (int i = -90000; i < 90000; i += W) {
    float in[W], out[W];
    for (int k = 0; k < W; ++k) in[k] = static_cast<float>(i + k) * 1e-4f;
    store(out, normal_cdf(load(in)));
    for (int k = 0; k < W; ++k) {
      const double expected = 0.5 * std::erfc(-static_cast<double>(in[k]) / std::sqrt(2.0));
      // The polynomial has an error of 1.3·2⁻²⁴. The exponential, the sum and the quotient each add a
      // rounding error of at most 2⁻²⁴.
      ASSERT_NEAR(out[k], expected, 4.3 * 0x1p-24) << in[k];
      ASSERT_NEAR(out[k], expected, in[k] > -6 ? 3e-3 * expected : 1e-9) << in[k];  // Φ(-6) is 1e-9
    }
  }
}
TEST(SimdMath, Sin) {
  EXPECT_LE(worst_ulp([](F32 x) { return sin(x); }, [](double x) { return std::sin(x); }, everywhere), 2);
}
TEST(SimdMath, Cos) {
  EXPECT_LE(worst_ulp([](F32 x) { return cos(x); }, [](double x) { return std::cos(x); }, everywhere), 2);
}

TEST(SimdLoads, SixteenBitTypesRoundLikeTheirScalars) {
  constexpr int W = lanes<F32>;
  for (std::uint64_t u = 0; u < 0x100000000ull; u += W * 65521) {
    float in[W];
    for (int i = 0; i < W; ++i) {
      const auto bits = static_cast<std::uint32_t>(u + static_cast<std::uint64_t>(i) * 65521);
      std::memcpy(in + i, &bits, 4);
    }
    bfloat16 b[W];
    float16 h[W];
    store(b, load(in));
    store(h, load(in));
    for (int i = 0; i < W; ++i) {
      if (std::isnan(in[i])) {
        EXPECT_TRUE(std::isnan(static_cast<float>(b[i])) && std::isnan(static_cast<float>(h[i])));
        continue;
      }
      EXPECT_EQ(b[i].bits, bfloat16(in[i]).bits);
      EXPECT_EQ(h[i].bits, float16(in[i]).bits);
    }
  }
}

// Tests three points for each number of the type. They are the midpoint between the number and its successor,
// and the points directly below and above this midpoint. Ties round to even.
TEST(SimdLoads, HalfwayCasesRoundToEven) {
  constexpr int W = lanes<F32>;
  const std::vector<float> cases = halfway_cases();
  for (std::size_t at = 0; at + W <= cases.size(); at += W) {
    bfloat16 b[W];
    float16 h[W];
    store(b, load(&cases[at]));
    store(h, load(&cases[at]));
    for (int i = 0; i < W; ++i) {
      const float x = cases[at + static_cast<std::size_t>(i)];
      ASSERT_EQ(b[i].bits, bfloat16(x).bits) << x;
      ASSERT_EQ(h[i].bits, float16(x).bits) << x;
    }
  }
  EXPECT_EQ(bfloat16(1 + 0x1p-8f).bits, bfloat16(1.f).bits);
  EXPECT_EQ(bfloat16(1 + 0x3p-8f).bits, bfloat16(1 + 0x1p-6f).bits);
  EXPECT_EQ(float16(1 + 0x1p-11f).bits, float16(1.f).bits);
  EXPECT_EQ(float16(1 + 0x3p-11f).bits, float16(1 + 0x1p-9f).bits);
  EXPECT_EQ(float16(0x1p-25f).bits, float16(0.f).bits);  // between 0 and the smallest subnormal
  EXPECT_EQ(float16(0x3p-25f).bits, float16(0x1p-23f).bits);
}

TEST(SimdLoads, PartialLoadsAndStoresTouchOnlyTheirElements) {
  constexpr int W = lanes<F32>;
  float from[W], to[W];
  for (int i = 0; i < W; ++i) from[i] = static_cast<float>(i + 1);
  for (int n = 0; n <= W; ++n) {
    std::fill(to, to + W, -1.f);
    const F32 v = load_partial(from, n);
    for (int i = 0; i < W; ++i) EXPECT_EQ(v[i], i < n ? from[i] : 0.f);
    store_partial(to, load(from), n);
    for (int i = 0; i < W; ++i) EXPECT_EQ(to[i], i < n ? from[i] : -1.f);
  }
}

// Block counters have 64 bits. In some lanes, the lower word overflows.
TEST(SimdPhilox, WordsOfElementsMatchTheirCounters) {
  constexpr std::uint64_t key = 0x0123456789abcdefu;
  constexpr std::uint64_t word = std::uint64_t{1} << 32;
  for (const std::uint64_t first :
       {std::uint64_t{0}, std::uint64_t{5}, word - 1, word - 2, 3 * word - 3, 7 * word}) {
    std::uint32_t words[4 * lanes<U32>];
    element_words(first, key, words);
    for (std::uint64_t block = 0; block < std::uint64_t{lanes<U32>}; ++block) {
      const PhiloxBlock expected = philox(element_counter(first + block), key);
      for (std::size_t w = 0; w < 4; ++w)
        ASSERT_EQ(words[block * 4 + w], expected[w]) << first << " " << block;
    }
  }
}

// Tests which row is prefetched while another row is read.
TEST(SimdRows, ArePrefetchedSomeRowsAhead) {
  const float data[200] = {};
  const i64 place[] = {0, 10, 30, 60, 100};
  const RowsInMemory<float> rows{data, place, 2, 7}, column = rows.from_column(3);
  EXPECT_EQ(rows.at(2), data + 30);
  EXPECT_EQ(rows.fetched_at(1), data + 60 + 7);
  EXPECT_EQ(column.at(1), data + 13);
  EXPECT_EQ(column.fetched_at(2), data + 100 + 3 + 7);
  const RowsInCache<float> near{data, place}, near_column = near.from_column(4);
  EXPECT_EQ(near.at(3), data + 60);
  EXPECT_EQ(near_column.at(3), data + 64);
  EXPECT_EQ(near.fetched_at(3), near.at(3));
}

}  // namespace
}  // namespace tg::cpu::simd_test
