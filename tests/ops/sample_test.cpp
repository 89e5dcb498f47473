// Tests that `sample` draws the same tokens as nn::sample_token, independently for every row.
#include "ops/sample.h"

#include <tuple>

#include <tilegrad/nn/generation/generate.h>
#include "tests/support/sampled_rows.h"
#include "tests/support/small_gpt.h"

namespace tg {
namespace {

using namespace testing;

constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

TEST(SampleWeights, AreExponentialsRoundedToIntegers) {
  EXPECT_EQ(sample_weight(3, 3, 1, 50), std::uint64_t{1} << 50);
  for (int i = 0; i <= 44000; ++i) {
    const double x = -i * 1e-3;
    ASSERT_NEAR(exp_of_negative(x) / std::exp(x), 1, 0x1p-51) << x;
    ASSERT_NEAR(static_cast<double>(sample_weight(x, 0, 1, 50)), std::exp(x) * 0x1p50, 1) << x;
  }
  EXPECT_EQ(sample_weight(-44.1, 0, 1, 62), 0u);
  EXPECT_EQ(sample_weight(nan, 0, 1, 50), 0u);
  EXPECT_EQ(sample_weight(-inf, 0, 0, 50), 0u);  // an infinite temperature
}

#if defined(__x86_64__) && !defined(__FMA__)  // on other targets, the compiler may contract products and sums
TEST(SampleWeights, ExponentialsMatchTheirSeriesBitwise) {
  for (int i = 0; i < 400000; ++i) {
    // These numbers are halfway between multiples of log 2. There, the last terms of the series are largest.
    const double x = -(i % 60 + 0.5) * (1 + i / 60 * 2e-8) * 0.69314718055994530942;
    const int k = static_cast<int>(std::trunc(x * 1.44269504088896340736 - 0.5));
    const double r = x - k * 0.693147180369123816490 - k * 1.90821492927058770002e-10;
    double p = 0, factorial = 479001600;  // 12!
    for (int n = 12; n >= 0; --n) {
      p = p * r + 1 / factorial;
      factorial /= std::max(n, 1);
    }
    ASSERT_EQ(exp_of_negative(x), std::ldexp(p, k)) << x;
  }
}
#endif

TEST(SampleWeights, DoNotOverflowWhenTheyAreAdded) {
  for (const std::uint64_t n : {1u, 2u, 3u, 255u, 256u, 257u, 0x7fffffffu})
    EXPECT_LT(static_cast<double>(n) * std::exp2(sample_bits(n)), 0x1p63) << n;
}

TEST(SampleWeights, AShareIsTheUpperHalfOfAProduct) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t a = random() >> random() % 64, b = random() >> random() % 64;
    ASSERT_EQ(share_of(a, b), static_cast<std::uint64_t>(static_cast<unsigned __int128>(a) * b >> 64));
  }
}

TEST(SampleWeights, ReserveBitsForTheNumberOfLogits) {
  const std::pair<std::uint64_t, int> all[] = {{1, 62},   {2, 61},   {3, 61},         {4, 60},
                                               {255, 55}, {256, 54}, {0x7fffffff, 32}};
  for (const auto& [n, bits] : all) EXPECT_EQ(sample_bits(n), bits) << n;
}

TEST(SampleWeights, AreRoundedToTheNearest) {
  EXPECT_EQ(sample_weight(0, 0, 1, 0), 1u);
  EXPECT_EQ(sample_weight(-0.69, 0, 1, 0), 1u);  // 0.5016
  EXPECT_EQ(sample_weight(-0.70, 0, 1, 0), 0u);  // 0.4966
  EXPECT_EQ(sample_weight(-1, 0, 0.69, 0), 1u);
  EXPECT_EQ(sample_weight(4, 5, 0.5, 30), sample_weight(-1, 0, 0.5, 30));
  EXPECT_EQ(sample_weight(-44, 0, 1, 63), 1u);  // 0.72
}

TEST(SampleWeights, AFractionIsTheFirst53BitsOfTheWordsOfItsKey) {
  for (std::uint64_t seed : {0ull, 1ull, 77ull, ~0ull})
    for (std::uint64_t k = 0; k < 5; ++k) {
      const PhiloxBlock key = philox({static_cast<std::uint32_t>(k), 0, 0xffffff01u, 0}, seed);
      const PhiloxBlock words = philox({0, 0, 0, 0}, key[0] | std::uint64_t{key[1]} << 32);
      const std::uint64_t both = std::uint64_t{words[0]} << 32 | words[1];
      EXPECT_EQ(sample_fraction(seed, k), both - both % 2048);
    }
}

TEST(SampleWeights, AShareOfAllIsAtLeastOneAndAtMostAll) {
  constexpr std::uint64_t large = std::uint64_t{1} << 62;
  const std::tuple<std::uint64_t, double, std::uint64_t> all[] = {
      {10, 0, 1},       {10, 0.1, 1}, {10, 0.11, 2}, {10, 0.2, 2}, {10, 0.25, 3}, {10, 0.95, 10},
      {10, 1, 10},      {10, 2, 10},  {10, -1, 1},   {10, nan, 1}, {1, 0.5, 1},   {large, 0.5, large / 2},
      {large, 1, large}};
  for (const auto& [total, top_p, kept] : all)
    EXPECT_EQ(kept_weight(total, top_p), kept) << total << " " << top_p;
}

TEST(SampleWeights, OrderMatchesTheOrderOfNumbers) {
  const double rising[] = {-INFINITY, -1e300, -1e30, -2, -1,   -1e-40, -1e-310, 0,
                           1e-310,    1e-40,  1,     2,  1e30, 1e300,  INFINITY};
  EXPECT_EQ(order_of(nan), 0u);
  EXPECT_EQ(order_of(std::nan("")), 0u);
  EXPECT_EQ(order_of(-0.f), order_of(0.f));
  EXPECT_EQ(order_of(-0.), order_of(0.));
  EXPECT_EQ(order_of(0.f), 0x80000000u);
  EXPECT_EQ(order_of(1.f), 0xbf800000u);
  EXPECT_EQ(order_of(-1.f), 0x407fffffu);
  EXPECT_EQ(order_of(1.), 0xbff0000000000000u);
  EXPECT_EQ(order_of(-1.), 0x400fffffffffffffu);
  for (std::size_t i = 1; i < std::size(rising); ++i) {
    EXPECT_LT(order_of(rising[i - 1]), order_of(rising[i])) << rising[i];
    const float low = static_cast<float>(rising[i - 1]), high = static_cast<float>(rising[i]);
    EXPECT_EQ(order_of(low) < order_of(high), low < high) << high;
  }
}

TEST(SampleWeights, AreDrawnIfTheInverseTemperatureIsFinite) {
  for (const double t : {1., 1e-300, 1e300, static_cast<double>(inf)}) EXPECT_TRUE(is_drawn(t)) << t;
  for (const double t : {0., -1., 1e-310, static_cast<double>(nan), -static_cast<double>(inf)})
    EXPECT_FALSE(is_drawn(t)) << t;
}

TEST(Sample, DrawsTheTokensOfSampleToken) {
  expect_rows_of_every_kind({.threads = 1}, 200, {1, 2, 3, 17, 64, 300});
  expect_rows_of_every_kind({.threads = 3}, 20, {5000});
}

TEST(Sample, DrawsTheSameTokensFromLogitsOfEveryDtype) {
  std::mt19937_64 random(3);
  std::vector<SampledRow> rows = random_rows(random, 100, 50);
  for (SampledRow& row : rows)
    for (float& x : row.logits)
      x = static_cast<float>(bfloat16(std::clamp(x, -100.f, 100.f)));  // f16 can represent most of these
  for (const DType dtype : {f64, bf16}) expect_sampled(rows, true, {}, dtype);
}

TEST(Sample, ARowDependsOnlyOnItself) {
  std::mt19937_64 random(4);
  const std::vector<SampledRow> rows = random_rows(random, 33, 70);
  const std::vector<std::int32_t> together = drawn_together(rows, true, {});
  for (std::size_t r = 0; r < rows.size(); ++r)
    EXPECT_EQ(drawn_together({rows[r]}, true, {})[0], together[r]) << r;
}

TEST(Sample, AcceptsViewsAndNumbersForSettings) {
  Graph g;
  const Tensor x = g.input("x", {5, 3}), keys = g.input("keys", {2, 3}, i64);
  const std::vector<float> logits{0, 1, 2, 3, 4, 9, 1, 1, 1, 2, 0, 3, 7, 7, 0};
  const std::vector<std::int64_t> key{1, 2, 3, 4, 5, 6};
  const Tensor view = x.transpose(0, 1);  // [3, 5]
  const Tensor drawn = sample(view, 0.5, keys.transpose(0, 1), 2, 0.9);
  const std::vector<std::int32_t> got =
      run_checked({drawn}, {{x, logits}, {keys, Array::of({2, 3}, key)}})[0].values<std::int32_t>();
  for (std::size_t r = 0; r < 3; ++r) {
    SampledRow row{{},
                   {.temperature = 0.5, .top_k = 2, .top_p = 0.9},
                   static_cast<std::uint64_t>(key[r]),
                   static_cast<std::uint64_t>(key[3 + r])};
    for (std::size_t i = 0; i < 5; ++i) row.logits.push_back(logits[3 * i + r]);
    EXPECT_EQ(got[r], row.expected()) << r;
  }
}

// Keys, settings and logits may have any strides. A wrong key would change every draw.
TEST(Sample, ReadsViewsOfEachOperand) {
  constexpr std::int64_t B = 60, V = 7;
  Graph g;
  const Tensor x = g.input("x", {V, B}), keys = g.input("keys", {2, B}, i64), t = g.input("t", {B, 2}),
               k = g.input("k", {2 * B}, i32), p = g.input("p", {B, 3}, f64);
  const Tensor drawn = sample(transpose(x, 0, 1), view(slice(t, 1, 1, 2), {B}), transpose(keys, 0, 1),
                              slice(k, 0, 1, 2 * B, 2), view(slice(p, 1, 2, 3), {B}));
  Array xs({V, B}, f32), key({2, B}, i64), ts({B, 2}, f32), ks({2 * B}, i32), ps({B, 3}, f64);
  std::vector<SampledRow> rows;
  for (std::int64_t r = 0; r < B; ++r) {
    SampledRow row{{},
                   {.temperature = 0.5 + static_cast<double>(r) / 64,
                    .top_k = r % 5,
                    .top_p = 1 - static_cast<double>(r % 4) / 8},
                   static_cast<std::uint64_t>(1000 * r + 1),
                   static_cast<std::uint64_t>(7 * r)};
    for (std::int64_t i = 0; i < V; ++i) {
      row.logits.push_back(static_cast<float>((r * 5 + i * 3) % 7) / 4);
      xs.set(i * B + r, static_cast<double>(row.logits.back()));
    }
    key.set(r, static_cast<double>(row.seed)), key.set(B + r, static_cast<double>(row.k));
    ts.set(2 * r + 1, row.sampling.temperature), ks.set(2 * r + 1, static_cast<double>(r % 5));
    ps.set(3 * r + 2, row.sampling.top_p);
    rows.push_back(row);
  }
  for (const int threads : {1, 3}) {
    const Array got = eval(drawn, {{x, xs}, {keys, key}, {t, ts}, {k, ks}, {p, ps}}, {.threads = threads});
    for (std::int64_t r = 0; r < B; ++r)
      EXPECT_EQ(got.at(r), rows[static_cast<std::size_t>(r)].expected()) << r;
  }
}

TEST(Sample, GreedyUsesTheFirstOfTheLikeliest) {
  const std::vector<float> tie{1, 3, nan, 3};
  for (const double temperature : {0., -1., std::nan(""), 1e-310})
    EXPECT_EQ(drawn_together({{tie, {.temperature = temperature}}}, false, {})[0], 1) << temperature;
  EXPECT_EQ(drawn_together({{{1, inf, inf}, {}}}, false, {})[0], 1);
  EXPECT_EQ(drawn_together({{{nan, -inf, -inf}, {}}}, true, {})[0], 1);
  EXPECT_EQ(drawn_together({{{nan, nan}, {}}}, true, {})[0], -1);
}

TEST(Sample, KeepsTheFirstOfEqualLogits) {
  for (std::uint64_t k = 0; k < 50; ++k) {
    EXPECT_LT(drawn_together({{{2, 0.f, 2, 2, 2}, {.top_k = 2}, 1, k}}, true, {})[0], 3);
    EXPECT_LT(drawn_together({{{0.f, -0.f, 0.f, -0.f}, {.top_p = 0.5}, 1, k}}, true, {})[0], 2);
  }
}

// The engine draws the same tokens as Generator::extend().
TEST(Sample, MatchesTheGenerator) {
  nn::Params params(3);
  const nn::Model model(params, {.vocabulary = 31, .context = 12, .layers = 1, .heads = 2, .width = 16});
  nn::Generator generator(model);
  const nn::Sampling sampling{.temperature = 1.5, .top_k = 20, .top_p = 0.9};
  std::vector<std::int32_t> text{4, 2};
  generator.extend(text, 8, sampling, 77);
  generator.forget();
  for (std::size_t k = 0; k < 8; ++k) {
    const auto logits = generator.next(std::span(text).first(2 + k));
    const SampledRow row{{logits.begin(), logits.end()}, sampling, 77, k};
    EXPECT_EQ(drawn_together({row}, true, {})[0], text[2 + k]) << k;
  }
}

TEST(Sample, RefusesMismatchedOperands) {
  Graph g;
  const Tensor x = g.input("x", {3, 4}), t = g.input("t", {3}), keys = g.input("keys", {3, 2}, i64),
               k = g.input("k", {3}, i32);
  expect_error<ShapeError>([&] { sample(g.input("y", {3}), t, keys); },
                           {"[sample]", "expected logits [B, V]"});
  expect_error<ShapeError>([&] { sample(g.input("z", {3, 0}), t, keys); }, {"expected logits [B, V]"});
  expect_error<ShapeError>([&] { sample(x, g.input("u", {2}), keys); }, {"temperature is [2], expected [3]"});
  expect_error<ShapeError>([&] { sample(x, t, g.input("v", {3}, i64)); }, {"keys is [3], expected [3, 2]"});
  expect_error<ShapeError>([&] { sample(x, t, keys, g.input("w", {1}, i32)); },
                           {"top_k is [1], expected [3]"});
  expect_error<DTypeError>([&] { sample(x, t, g.input("i", {3, 2}, i32)); }, {"keys must be i64"});
  expect_error<DTypeError>([&] { sample(x, k, keys); }, {"temperature must be floating"});
  expect_error<DTypeError>([&] { sample(x, t, keys, t); }, {"top_k must be i64 or i32"});
  expect_error<DTypeError>([&] { sample(x, t, keys, k, k); }, {"top_p must be floating"});
  expect_error<Error>([&] { sample(x, t, 3); }, {"sample_test.cpp"});
  expect_error<GradientError>([&] { gradients(sum(cast(sample(x, t, keys), f32)), {x}); }, {"sample"});
}

}  // namespace
}  // namespace tg
