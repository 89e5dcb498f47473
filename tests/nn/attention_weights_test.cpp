// Tests attention_weights of a flash_attn node, and attention_maps of complete models. Rows must sum to 1,
// masked weights must be 0, and P·v must be flash_attn's result.
#include <gtest/gtest.h>

#include <cmath>

#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/language_model.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/tilegrad.h>
#include "tests/reference/reference_checks.h"
#include "tests/support/files.h"

namespace tg {
namespace {

using reference::close;
using reference::random_vector;
using testing::error_of;

// Tests every option that affects P, on grouped heads with L ≠ T, in f64. P·v must equal o, rows must sum to
// 1, and the weights of masked keys must be 0.
struct Case {
  const char* name;
  AttentionOptions options;
  bool sink = false, bias = false, lengths = false, dropout = false;
};

class AttentionWeights : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionWeights, TimesValuesMatchFlashAttn) {
  const auto& c = GetParam();
  constexpr std::int64_t B = 2, H = 4, Hk = 2, L = 5, T = 7, d = 3, dv = 6;
  Graph g;
  std::vector<Feed> feeds;
  std::deque<Array> arrays;
  const auto input = [&](const char* name, const Shape& shape) {
    const Tensor t = g.input(name, shape, f64);
    arrays.push_back(Array::of(shape, random_vector(t.numel(), arrays.size() + 1)));
    feeds.emplace_back(t, arrays.back());
    return t;
  };
  const Tensor q = input("q", {B, H, L, d}), k = input("k", {B, Hk, T, d}), v = input("v", {B, Hk, T, dv});
  AttentionOptions o = c.options;
  if (c.sink) o.sink = input("sink", {H});
  if (c.bias) o.bias = input("bias", {H, 1, T});
  if (c.lengths) o.kv_lengths = g.constant(Array::of(std::vector<std::int32_t>{3, 7}));
  const AttentionResult plain = flash_attn(q, k, v, o);
  AttentionOptions with_dropout = o;
  if (c.dropout) with_dropout.dropout = 0.5;
  const AttentionResult y = flash_attn(q, k, v, with_dropout);
  const Tensor p = attention_weights(y.o);
  ASSERT_EQ(p.shape(), (Shape{B, H, L, T}));
  const Tensor grouped = matmul(p.view({B, Hk, H / Hk, L, T}), unsqueeze(v, 2)).reshape({B, H, L, dv});
  const auto values = eval({plain.o, grouped, p, p.sum({-1}), attention_weights(y.lse)}, feeds);
  EXPECT_TRUE(close(values[0].values<double>(), values[1].values<double>(), 1e-12));
  EXPECT_TRUE(values[2].same_bits(values[4])) << "either result of flash_attn names it";
  for (const double s : values[3].values<double>()) {
    if (c.sink) {
      EXPECT_TRUE(s > 0 && s < 1) << s;
    } else {
      EXPECT_TRUE(std::abs(s - 1) < 1e-12 || s == 0) << s;
    }
  }
  const auto weights = values[2].values<double>();
  for (std::int64_t b = 0; b < B; ++b)
    for (std::int64_t h = 0; h < H; ++h)
      for (std::int64_t i = 0; i < L; ++i)
        for (std::int64_t t = 0; t < T; ++t) {
          const std::int64_t keys = c.lengths && b == 0 ? 3 : T, diagonal = i + keys - L;
          const bool seen = t < keys && !(o.causal && t > diagonal) &&
                            !(o.window_left >= 0 && t < diagonal - o.window_left);
          EXPECT_EQ(weights[static_cast<std::size_t>(((b * H + h) * L + i) * T + t)] > 0, seen)
              << b << ", " << h << ", " << i << ", " << t;
        }
}

INSTANTIATE_TEST_SUITE_P(Options, AttentionWeights,
                         ::testing::Values(Case{"plain", {}}, Case{"causal", {.causal = true}},
                                           Case{"window", {.causal = true, .window_left = 2}},
                                           Case{"softcap", {.scale = 2, .causal = true, .softcap = 1.5}},
                                           Case{"sink", {}, true},
                                           Case{"bias", {.causal = true}, false, true},
                                           Case{"lengths", {.causal = true}, false, false, true},
                                           Case{"dropout", {.causal = true}, false, false, false, true}),
                         [](const auto& c) { return c.param.name; });

TEST(AttentionWeights, RefuseTensorsThatFlashAttnDidNotCompute) {
  Graph g;
  const Tensor x = g.input("x", {1, 1, 2, 2});
  EXPECT_NE(error_of([&] { attention_weights(exp(x)); }).find("needs a result of flash_attn, got one of exp"),
            std::string::npos);
}

// Rows of every head must sum to 1. A token must not attend to later tokens. Heads must differ.
TEST(AttentionMaps, EveryArchitectureGivesCausalProbabilities) {
  for (const nn::Architecture& a : {nn::Architecture(nn::Gpt{}), nn::Architecture(nn::Llama{.key_heads = 2}),
                                    nn::Architecture(nn::DeepSeek{})}) {
    const std::int64_t L = 11, H = 4;
    nn::Params params(3);
    const nn::Model model(params, {.architecture = a,
                                   .vocabulary = 13,
                                   .context = 16,
                                   .layers = 3,
                                   .heads = H,
                                   .width = 32,
                                   .dropout = 0.5,
                                   .std = 0.3});
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i < L; ++i) tokens.push_back(i * i % 13);
    const auto maps = nn::attention_maps(model, tokens);
    ASSERT_EQ(maps.size(), 3u);
    EXPECT_EQ(maps[2].layer, a.name() == "gpt" ? "transformer.h.2.attn" : "model.layers.2.self_attn");
    for (const nn::AttentionMap& m : maps) {
      ASSERT_EQ(m.weights.shape(), (Shape{H, L, L}));
      const auto p = m.weights.values<float>();
      for (std::int64_t row = 0; row < H * L; ++row) {
        double sum = 0;
        for (std::int64_t t = 0; t < L; ++t) {
          const float x = p[static_cast<std::size_t>(row * L + t)];
          sum += x;
          if (t > row % L) {
            EXPECT_EQ(x, 0) << "row " << row << " reads " << t;
          } else {
            EXPECT_GT(x, 0);
          }
        }
        EXPECT_NEAR(sum, 1, 1e-5);
      }
      EXPECT_FALSE(std::equal(p.begin(), p.begin() + L * L, p.begin() + L * L)) << "two heads are the same";
    }
  }
}

TEST(AttentionMaps, RefuseMoreTokensThanTheContext) {
  nn::Params params;
  const nn::Model model(params, {.vocabulary = 5, .context = 4, .layers = 1, .heads = 1, .width = 8});
  EXPECT_NE(error_of([&] { nn::attention_maps(model, {0, 1, 2, 3, 4}); }), "no error");
}

}  // namespace
}  // namespace tg
