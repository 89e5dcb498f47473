// Tests attention if all scores of a row have a large magnitude. Covers results, first and second
// derivatives, weights and dropout of flash_attn and its decomposition.
#include "tests/support/large_scores.h"

namespace tg {
namespace {

using namespace large_scores;

class LargeScores : public ::testing::TestWithParam<DType> {};

TEST_P(LargeScores, ResultsAndGradientsMatchF64) {
  for (Case c : cases())
    for (const auto& [B, H, Hk, L, T] : {std::tuple{1, 1, 1, 1, 5}, std::tuple{2, 2, 1, 3, 300},
                                         std::tuple{1, 2, 2, 20, 40}, std::tuple{1, 2, 1, 130, 290}}) {
      if (!c.suits(GetParam())) continue;
      SCOPED_TRACE(std::to_string(L) + " queries, " + std::to_string(T) + " keys");
      c.B = B, c.H = H, c.Hk = Hk, c.L = L, c.T = T;
      expect_right(c, GetParam());
    }
}
// The bias is large but in the range of f16. Queries have ordinary magnitude.
TEST_P(LargeScores, BiasesOfTheTypesRangeMatchF64) {
  for (const std::int64_t L : {1, 40})
    expect_right({.name = "-60000", .L = L, .T = 70, .bias = [](auto, auto) { return -57344.; }}, GetParam());
}
INSTANTIATE_TEST_SUITE_P(Types, LargeScores, ::testing::Values(f64, f32, bf16, f16),
                         [](const auto& x) { return std::string(name_of(x.param)); });

// Counts the rows of P whose sum is not 1, and the elements that differ from `expected`.
TEST(LargeScoresGraph, WeightsOfEqualScoresAreEqual) {
  for (const double b : {-1e9, 1e6, -static_cast<double>(std::numeric_limits<float>::max())}) {
    Graph g;
    const Tensor q = full(g, {1, 1, 1, 4}, 1, f32), k = full(g, {1, 1, 5, 4}, 1, f32);
    const AttentionResult r = flash_attn(q, k, k, {.bias = full(g, {1, 5}, b, f32)});
    EXPECT_EQ(eval(attention_weights(r.o)).values<float>(), std::vector<float>(5, 0.2F)) << b;
  }
}

// A single key has weight P = 1 for any score.
TEST(LargeScoresGraph, OneKeyHasAllTheWeight) {
  for (const float score : {1e6F, -1e6F, 1e10F, 3e30F}) {
    Graph g;
    const Tensor q = full(g, {1, 1, 1, 1}, score, f32), k = full(g, {1, 1, 1, 1}, 1, f32),
                 v = full(g, {1, 1, 1, 3}, 2, f32), z = full(g, {1, 1, 1, 3}, 0.5, f32);
    const AttentionResult r = flash_attn(q, k, v, {.scale = 1});
    EXPECT_EQ(eval(r.o).values<float>(), std::vector<float>(3, 2));
    EXPECT_EQ(eval(r.lse).values<float>(), std::vector<float>{score});
    EXPECT_EQ(eval(gradients(r.o, {v}, z)[0]).values<float>(), std::vector<float>(3, 0.5F));
    EXPECT_EQ(eval(attention_weights(r.o)).values<float>(), std::vector<float>{1});
  }
}

// The results of key ranges and a sink are merged. The largest score determines the result, even if it
// exceeds the largest integer.
TEST(LargeScoresGraph, OneOfManyKeysHasAllTheWeight) {
  constexpr std::int64_t T = 3000;
  for (const std::int64_t largest : {0, 1500, 2999})
    for (const bool has_sink : {false, true}) {
      Graph g;
      std::vector<float> keys(T, 0.5F), values(T);
      keys[static_cast<std::size_t>(largest)] = 1;
      for (std::size_t j = 0; j < values.size(); ++j) values[j] = static_cast<float>(j);
      const Tensor q = full(g, {1, 1, 1, 1}, 3e30, f32), k = g.constant(Array::of<float>({1, 1, T, 1}, keys)),
                   v = g.constant(Array::of<float>({1, 1, T, 1}, values));
      AttentionOptions options{.scale = 1};
      if (has_sink) options.sink = full(g, {1}, 2e30, f32);
      const AttentionResult r = flash_attn(q, k, v, options);
      EXPECT_EQ(eval(r.o).values<float>(), std::vector<float>{static_cast<float>(largest)}) << has_sink;
      EXPECT_EQ(eval(r.lse).values<float>(), std::vector<float>{3e30F}) << has_sink;
    }
}

// For a fixed mask, o is linear in v, so ⟨o, z_o⟩ = ⟨v, z_v⟩.
TEST(LargeScoresGraph, DropoutDropsTheSameElementsInBothDirections) {
  Graph g;
  const auto constant = [&](const Shape& s, std::uint64_t seed, double by) {
    Numbers x = integers(numel(s), 4, seed);
    for (double& e : x) e *= by;
    return g.constant(Array::of(s, x).to(f32));
  };
  const Tensor q = constant({1, 2, 33, 16}, 1, 1 << 20), k = constant({1, 2, 70, 16}, 2, 1),
               v = constant({1, 2, 70, 8}, 3, 0.25), z = constant({1, 2, 33, 8}, 4, 0.25),
               o = flash_attn(q, k, v, {.dropout = 0.4}).o, z_v = gradients(o, {v}, z)[0];
  const double by_o = eval(sum(cast(o * z, f64))).item<double>(),
               by_v = eval(sum(cast(v * z_v, f64))).item<double>();
  EXPECT_NEAR(by_o, by_v, 1e-4 * std::abs(by_o));
  EXPECT_NE(by_o, 0);
}

// Second derivatives use the backward's decomposition, and ξ is an input of it.
TEST(LargeScoresGraph, SecondDerivativesMatchStandardAttn) {
  Results r[2];
  for (const bool is_fused : {true, false}) {
    Graph g;
    const auto constant = [&](const Shape& s, std::uint64_t seed, double by) {
      Numbers x = integers(numel(s), 4, seed);
      for (double& e : x) e *= by;
      return g.constant(Array::of(s, x).to(f64));
    };
    const Tensor q = constant({1, 2, 5, 4}, 1, 0.125), k = constant({1, 1, 6, 4}, 2, 0.5),
                 v = constant({1, 1, 6, 3}, 3, 0.25), bias = constant({5, 1}, 5, 1e7);
    const Attend attend = is_fused ? fused : unfused;
    const AttentionResult a = attend(q, k, v, {.bias = bias});
    const std::vector<Tensor> first = gradients(sum(a.o * a.o), {q, k, v});
    const std::vector<Tensor> second =
        gradients(sum(first[0] * first[0]) + sum(first[1] * first[1]) + sum(first[2] * first[2]), {q, k, v});
    for (std::size_t n = 0; n < 3; ++n)
      r[is_fused ? 0 : 1]["z" + std::to_string(n)] = eval(second[n]).values<double>();
  }
  for (const auto& [name, values] : r[0])
    for (std::size_t e = 0; e < values.size(); ++e)
      EXPECT_NEAR(values[e], r[1][name][e], 1e-7 * (1 + largest(r[1][name]))) << name;
}

}  // namespace
}  // namespace tg
