// Reproduces public bugs of sampling. Many evenly spaced draws are made, so that every possible token is
// sampled. These tokens are compared with the expected tokens.
#include <tilegrad/nn/generation/sampling.h>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "tests/support/engine_calls.h"
#include "tests/support/sampled_rows.h"

namespace tg {
namespace {

using nn::Engine;
using nn::Sampling;
using testing::Tokens;
using Drawn = std::set<std::int32_t>;

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

Drawn drawn(const std::vector<float>& logits, const Sampling& sampling) {
  constexpr int draws = 400;
  Drawn tokens;
  for (int i = 0; i < draws; ++i) tokens.insert(nn::sample_token(logits, sampling, (i + 0.5) / draws));
  return tokens;
}

// https://github.com/huggingface/transformers/pull/24111
// https://github.com/huggingface/transformers/pull/19839 https://github.com/google-deepmind/simply/pull/42
// A top_p of 0 kept no token or all tokens. The most likely token must always be kept.
TEST(BugsOfOthersSampling, TopPOfZeroKeepsTheLikeliest) {
  EXPECT_EQ(drawn(logits_of({.2, .5, .3}), {.top_p = 0}), (Drawn{1}));
}

// https://github.com/fishaudio/fish-speech/pull/1171 https://github.com/Biohub/esm/pull/360
// https://github.com/ml-explore/mlx-lm/issues/1912
// Tokens are added until their sum reaches top_p. The last of these tokens was removed, so the sum was below
// top_p. It must be kept.
TEST(BugsOfOthersSampling, TopPKeepsTheTokenThatCrossesIt) {
  EXPECT_EQ(drawn(logits_of({.5, .3, .2}), {.top_p = .6}), (Drawn{0, 1}));
}

// https://github.com/huggingface/transformers/issues/18976
// If the sum was exactly top_p, one more token was kept. Here top_p is 1/2, and four tokens are equally
// likely, so two must be kept.
TEST(BugsOfOthersSampling, TopPReachedExactlyKeepsNoMore) {
  EXPECT_EQ(drawn({1, 1, 1, 1}, {.top_p = .5}), (Drawn{0, 1}));
}

// https://github.com/promptfoo/promptfoo/issues/8161
// https://github.com/RunanywhereAI/runanywhere-sdks/pull/812
// https://github.com/abetlen/llama-cpp-python/issues/1322
// A temperature of 0 was treated as unset, and tokens were sampled. It must select the most likely token.
TEST(BugsOfOthersSampling, TemperatureZeroIsGreedy) {
  EXPECT_EQ(drawn(logits_of({.3, .4, .3}), {.temperature = 0}), (Drawn{1}));
}

// https://github.com/TransformerLensOrg/TransformerLens/pull/1347
// https://github.com/OpenNMT/CTranslate2/pull/586
// If top_k exceeded the number of tokens, sampling failed with an error. Such a top_k must keep all tokens.
TEST(BugsOfOthersSampling, TopKAboveTheVocabularyKeepsAll) {
  EXPECT_EQ(drawn(logits_of({.5, .3, .2}), {.top_k = 10}), (Drawn{0, 1, 2}));
}

// https://github.com/ml-explore/mlx-examples/issues/1219 https://github.com/openai/gpt-2/issues/187
// If top_k and top_p were both set, only one was applied. top_p must be a share of the probability of the
// tokens that top_k keeps.
TEST(BugsOfOthersSampling, TopKAndTopPApplyTogether) {
  const std::vector<float> logits = logits_of({.4, .3, .2, .1});
  EXPECT_EQ(drawn(logits, {.top_k = 2, .top_p = .9}), (Drawn{0, 1}));
  EXPECT_EQ(drawn(logits, {.top_k = 2, .top_p = .5}), (Drawn{0}));
}

// https://github.com/pytorch/pytorch/pull/2896 https://github.com/probmods/webppl/pull/229
// A draw of exactly 0 selected a first token with probability 0. Such a token must never be sampled.
TEST(BugsOfOthersSampling, TokenWithoutProbabilityIsNeverDrawn) {
  constexpr float never = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits{never, 0, never, 0};
  EXPECT_EQ(nn::sample_token(logits, {}, 0), 1);
  EXPECT_EQ(drawn(logits, {}), (Drawn{1, 3}));
}

// https://github.com/vllm-project/vllm/issues/53029 https://github.com/vllm-project/vllm/pull/21876
// If all logits were NaN, token 0 was sampled without an error. The op must return no token.
TEST(BugsOfOthersSampling, RowOfNaNIsAnErrorNotAToken) {
  const testing::SampledRow row{.logits = std::vector<float>(5, std::nanf("")), .sampling = {}};
  EXPECT_EQ(testing::drawn_together({row}, false, {}), (Tokens{-1}));
  EXPECT_THROW(nn::sample_token(row.logits, {}, .5), Error);
}

struct Texts {
  nn::Params params{1};
  const nn::Model model{params, testing::config()};
  Engine engine{model, {.slots = 4, .page_size = 4, .chunk = 16, .threads = 1, .ahead = false}};

  static Engine::Request into(Tokens& text, Engine::Request request) {
    request.report = [&text](const Engine::Token& t) {
      text.push_back(t.token);
      return true;
    };
    return request;
  }
  // Returns `count` tokens after the prompt. The first token uses the seed's random number with index
  // `number`.
  Tokens expected(Tokens text, std::int64_t count, std::uint64_t seed, std::uint64_t number = 0) const {
    nn::Generator generator(model, {.threads = 1});
    const auto begin = std::ssize(text);
    for (std::int64_t n = 0; n < count; ++n)
      text.push_back(nn::sample_token(generator.next(text), {}, nn::sampling_draw(seed, number++)));
    return {text.begin() + begin, text.end()};
  }
};

// https://github.com/vllm-project/vllm/issues/51226
// The tokens of a request with a seed depended on other requests in the batch. They must depend only on the
// seed.
TEST(BugsOfOthersSampling, SeededRequestDoesNotDependOnOthers) {
  Texts t;
  Tokens own, others[2];
  t.engine.add(Texts::into(others[0], {.prompt = {1, 2}, .tokens = 8, .seed = 1}));
  t.engine.add(Texts::into(others[1], {.prompt = {5}, .tokens = 8, .seed = 2}));
  t.engine.add(Texts::into(own, {.prompt = {3, 1, 4}, .tokens = 8, .seed = 7}));
  t.engine.run();
  EXPECT_EQ(own, t.expected({3, 1, 4}, 8, 7));
}

// https://github.com/tenstorrent/tt-metal/issues/53802
// Random numbers depended on the slot of the batch, so the same seed gave different tokens in each slot.
TEST(BugsOfOthersSampling, SameSeedGivesTheSameTokensInEverySlot) {
  Texts t;
  Tokens texts[3];
  for (Tokens& text : texts) t.engine.add(Texts::into(text, {.prompt = {3, 1, 4}, .tokens = 8, .seed = 7}));
  t.engine.run();
  EXPECT_EQ(texts[0].size(), 8u);
  EXPECT_EQ(texts[1], texts[0]);
  EXPECT_EQ(texts[2], texts[0]);
}

// https://github.com/vllm-project/vllm/issues/50440
// All samples of one prompt used the seed of the first sample, so their tokens were the same. Each sample
// must have its own seed.
TEST(BugsOfOthersSampling, ForksDrawTheirOwnTokens) {
  Texts t;
  Tokens first, second;
  const auto handle = t.engine.add(Texts::into(first, {.prompt = {3, 1, 4}, .tokens = 12, .seed = 7}));
  while (first.size() < 3) t.engine.step();
  Tokens begun{3, 1, 4};
  begun.insert(begun.end(), first.begin(), first.end());
  t.engine.fork(handle, 8, [&](const Engine::Token& token) {
    second.push_back(token.token);
    return true;
  });
  t.engine.run();
  EXPECT_EQ(first, t.expected({3, 1, 4}, 12, 7));
  EXPECT_EQ(second, t.expected(begun, 9, 8, 3));
}

}  // namespace
}  // namespace tg
