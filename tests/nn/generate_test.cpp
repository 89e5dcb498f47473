// Tests sampling, and compares generation with and without a key-value cache.
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include <tilegrad/train/training.h>

namespace {

using namespace tg;

struct Kind {
  const char* name;
  nn::ModelConfig config;
};

std::vector<Kind> kinds() {
  const nn::ModelConfig base{
      .vocabulary = 29, .context = 24, .layers = 2, .heads = 4, .width = 32, .tied_head = false, .std = 0.2};
  std::vector<Kind> list = {{"MHA", base}, {"MHA, rotary", base}, {"GQA", base},
                            {"MQA", base}, {"MLA", base},         {"MLA, compressed queries", base}};
  list[1].config.architecture = nn::Llama{};
  list[2].config.architecture = nn::Llama{.key_heads = 2};
  list[3].config.architecture = nn::Llama{.key_heads = 1};
  list[4].config.architecture = nn::DeepSeek{};
  list[5].config.architecture = nn::DeepSeek{.query_latent = 12};
  list[5].config.tied_head = true;
  return list;
}

const std::vector<std::int32_t> prompt = {3, 1, 4, 1, 5, 9, 2};

std::vector<std::int32_t> text(const nn::Model& model, std::int64_t count, const nn::Sampling& sampling,
                               const nn::Generator::Options& options) {
  nn::Generator generator(model, options);
  std::vector<std::int32_t> tokens = prompt;
  generator.extend(tokens, count, sampling, 11);
  return tokens;
}

TEST(Generator, GreedyTokensAreTheSameWithACacheAndWithout) {
  for (const Kind& kind : kinds())
    for (const std::uint64_t seed : {1, 2, 3}) {
      nn::Params params(seed);
      const nn::Model model(params, kind.config);
      // Beyond the context, the sequence is truncated to a window.
      const auto cached = text(model, 40, {.temperature = 0}, {}),
                 plain = text(model, 40, {.temperature = 0}, {.cache = false});
      EXPECT_EQ(cached, plain) << kind.name;
      EXPECT_EQ(cached.size(), prompt.size() + 40);
      // The generated sequence must contain different tokens.
      const auto first = cached.begin() + std::ssize(prompt);
      EXPECT_GT(std::count_if(first, cached.end(), [&](std::int32_t t) { return t != *first; }), 3)
          << kind.name;
    }
}

TEST(Generator, LogitsMatchTheWholeSequenceInEveryPrecision) {
  for (const Kind& kind : kinds())
    for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16}) {
      nn::Params params(1);
      const nn::Model model(params, kind.config);
      nn::Generator cached(model, {.precision = precision}),
          plain(model, {.precision = precision, .cache = false});
      for (std::size_t n = 1; n <= prompt.size(); ++n) {
        const auto part = std::span(prompt).first(n);
        const std::span<const float> got = cached.next(part), expected = plain.next(part);
        double size = 0, apart = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          size = std::max(size, std::abs(double{expected[i]}));
          apart = std::max(apart, std::abs(double{got[i]} - expected[i]));
        }
        // In f32, the tolerance is a few roundings. In bf16, GEMM results are rounded at different points.
        EXPECT_LE(apart, (precision == nn::Precision::full ? 1e-5 : 0.05) * size) << kind.name;
      }
    }
}

TEST(Generator, ReadsOnlyNewTokensAndForgetsRemovedOnes) {
  nn::Params params(1);
  const nn::Model model(params, kinds()[4].config);
  nn::Generator generator(model);
  const std::vector<std::int32_t> one = {1, 2, 3, 4, 5}, other = {1, 2, 7, 8};
  const auto fresh = [&](const std::vector<std::int32_t>& tokens) {
    nn::Generator g(model);
    const auto logits = g.next(tokens);
    return std::vector<float>(logits.begin(), logits.end());
  };
  const auto close = [](std::span<const float> a, const std::vector<float>& b) {
    for (std::size_t i = 0; i < b.size(); ++i)
      if (std::abs(a[i] - b[i]) > 1e-5f) return false;
    return a.size() == b.size();
  };
  EXPECT_TRUE(close(generator.next(one), fresh(one)));
  EXPECT_TRUE(close(generator.next(one), fresh(one)));
  EXPECT_TRUE(close(generator.next(other), fresh(other)));
  EXPECT_TRUE(close(generator.next(one), fresh(one)));
  // Some sequences are completely in the cache, others are longer. The logits must belong to the last token
  // of the given sequence.
  for (const std::size_t n : {4, 3, 1}) {
    const std::vector<std::int32_t> part(one.begin(), one.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_TRUE(close(generator.next(part), fresh(part))) << n << " of the tokens in the cache";
  }
  EXPECT_TRUE(close(generator.next(one), fresh(one)));
  // After a change of the weights, the cached values are invalid.
  Parameter table(*params.find("model.embed_tokens.weight"));
  const Array params_before = table.read();
  Array a = params_before.copy();
  for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, -a.at(i) * (1 + 0.1 * static_cast<double>(i % 3)));
  table.write(a);
  EXPECT_FALSE(close(generator.next(one), fresh(one)));
  generator.forget();
  EXPECT_TRUE(close(generator.next(one), fresh(one)));
  // A new sequence is computed from its start, so old cached values have no effect.
  table.write(params_before);
  std::vector<std::int32_t> text = one;
  nn::Generator(model).extend(text, 6, {.temperature = 0}, 1);
  table.write(a);
  std::vector<std::int32_t> other_text = one;
  generator.next(text);  // continues with the new weights; the sequence was read with the old weights
  table.write(params_before);
  generator.extend(other_text, 6, {.temperature = 0}, 1);
  EXPECT_EQ(other_text, text);
}

// A refused extension changes nothing. All previously read tokens are still in the cache.
TEST(Generator, ARefusedExtensionKeepsTheCache) {
  nn::Params params(1);
  const nn::Model model(params, kinds()[0].config);
  Parameter table(*params.find("transformer.wte.weight"));
  const Array before = table.read();
  const auto logits = [&](bool refused) {
    nn::Generator generator(model, {.threads = 1});
    generator.next(prompt);
    Array a = before.copy();
    for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, -a.at(i));
    table.write(a);  // a change of the weights would require forget()
    std::vector<std::int32_t> text = prompt;
    if (refused) {
      EXPECT_THROW(generator.extend(text, -1, {}, 1), Error);
      EXPECT_THROW(generator.extend(text, 1, {.top_p = 2}, 1), Error);
    }
    const auto got = generator.next(prompt);
    const std::vector<float> all(got.begin(), got.end());
    table.write(before);
    return all;
  };
  EXPECT_EQ(logits(true), logits(false));
}

TEST(Generator, ASequenceMayBeExtendedByZeroTokens) {
  nn::Params params(1);
  const nn::Model model(params, kinds()[0].config);
  EXPECT_EQ(text(model, 0, {}, {.threads = 1}), prompt);
}

// A program reads a chunk of 1, 2, 4, … tokens. If there is no cache, it reads a complete window.
TEST(Generator, RecordsOneProgramForEachChunkLength) {
  nn::Params params(1);
  const nn::Model model(params, kinds()[0].config);
  std::vector<std::int64_t> rows;
  nn::LanguageModel noting = model;
  noting.features = [features = noting.features, &rows](TensorArg tokens, const nn::CallArgs& call) {
    rows.push_back(tokens.tensor().numel());
    return features(tokens, call);
  };
  const std::vector<std::int32_t> tokens(15, 3);
  for (const bool cache : {true, false}) {
    rows.clear();
    nn::Generator generator(noting, {.threads = 1, .cache = cache});
    for (std::size_t n = 15; n > 0; --n) {
      generator.forget();
      generator.next(std::span(tokens).first(n));
    }
    EXPECT_EQ(rows, cache ? (std::vector<std::int64_t>{1, 8, 4, 2}) : (std::vector<std::int64_t>{24}));
  }
}

TEST(Generator, CachesTheNumbersThatItsAttentionNeeds) {
  const auto numbers = [](const nn::ModelConfig& config) {
    nn::Params params(1);
    const nn::Model model(params, config);
    nn::Generator generator(model);
    const std::size_t before = generator.cache().bytes();  // parameters of one program
    std::vector<std::int32_t> tokens = prompt;
    generator.extend(tokens, 3, {}, 1);
    EXPECT_EQ(generator.cache().bytes(), before);
    return static_cast<std::int64_t>(before / sizeof(float)) / config.layers / config.context;
  };
  const auto all = kinds();
  EXPECT_EQ(numbers(all[0].config), 2 * 32);
  EXPECT_EQ(numbers(all[1].config), 2 * 32);
  EXPECT_EQ(numbers(all[2].config), 2 * 32 / 2);
  EXPECT_EQ(numbers(all[3].config), 2 * 32 / 4);
  EXPECT_EQ(numbers(all[4].config), 32 + 8);  // m + p
}

TEST(Generator, TheSameSeedDrawsTheSameTokensWithACacheOrWithout) {
  nn::Params params(1);
  const nn::Model model(params, kinds()[2].config);
  const nn::Sampling sampling{.temperature = 0.9, .top_k = 12, .top_p = 0.95};
  EXPECT_EQ(text(model, 12, sampling, {}), text(model, 12, sampling, {.cache = false}));
  EXPECT_EQ(text(model, 12, sampling, {.threads = 1}), text(model, 12, sampling, {.threads = 3}));
}

// All logits are 0, so only the random number selects the token.
TEST(Generator, DrawsEachTokenWithASeparateNumber) {
  nn::Params params(1);
  const nn::Model model(params, kinds()[0].config);
  Parameter head(*params.find("lm_head.weight"));
  head.write(Array(head.shape(), head.dtype()));
  const std::vector<std::int32_t> tokens = text(model, 17, {}, {});
  const auto first = tokens.begin() + std::ssize(prompt);
  EXPECT_LT(std::count(first, tokens.end(), *first), 6);
}

TEST(Generator, ReportsEachTokenImmediately) {
  nn::Params params(1);
  const nn::Model model(params, kinds()[0].config);
  nn::Generator generator(model);
  std::vector<std::int32_t> tokens = prompt, reported;
  generator.extend(tokens, 9, {}, 1, [&](std::int32_t t) {
    EXPECT_EQ(tokens.back(), t);
    reported.push_back(t);
    return true;
  });
  EXPECT_EQ(reported, std::vector<std::int32_t>(tokens.begin() + std::ssize(prompt), tokens.end()));
}

TEST(Generator, EndsWhenItsReportRequestsIt) {
  nn::Params params(1);
  const nn::Model model(params, kinds()[0].config);
  nn::Generator generator(model);
  std::vector<std::int32_t> all = prompt, some = prompt;
  generator.extend(all, 9, {}, 1);
  generator.extend(some, 9, {}, 1, [&](std::int32_t) { return some.size() < prompt.size() + 4; });
  EXPECT_EQ(some, std::vector<std::int32_t>(all.begin(), all.begin() + std::ssize(prompt) + 4));
}

// Four tokens with probabilities 0.1, 0.4, 0.2 and 0.3.
const std::vector<float> four = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};

std::vector<double> shares(const nn::Sampling& sampling, const std::vector<float>& logits = four) {
  std::vector<double> count(logits.size());
  constexpr int draws = 1000;
  for (int i = 0; i < draws; ++i) ++count[nn::sample_token(logits, sampling, (i + 0.5) / draws)];
  for (double& c : count) c /= draws;
  return count;
}

void expect_shares(const nn::Sampling& sampling, const std::vector<double>& expected) {
  const auto got = shares(sampling);
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(got[i], expected[i], 2e-3) << i;
}

TEST(SampleToken, KeepsTheKLikeliest) {
  expect_shares({}, {0.1, 0.4, 0.2, 0.3});
  expect_shares({.top_k = 1}, {0, 1, 0, 0});
  expect_shares({.top_k = 2}, {0, 4. / 7, 0, 3. / 7});
  expect_shares({.top_k = 4}, {0.1, 0.4, 0.2, 0.3});
  expect_shares({.top_k = 9}, {0.1, 0.4, 0.2, 0.3});
  EXPECT_EQ(shares({.top_k = 2}, {0, 0, 0}),
            (std::vector<double>{shares({.top_k = 2}, {0, 0})[0], shares({.top_k = 2}, {0, 0})[1], 0}));
}

TEST(SampleToken, KeepsTheLikeliestUpToTopP) {
  expect_shares({.top_p = 0.35}, {0, 1, 0, 0});
  expect_shares({.top_p = 0.5}, {0, 4. / 7, 0, 3. / 7});
  expect_shares({.top_p = 0.85}, {0, 4. / 9, 2. / 9, 3. / 9});
  expect_shares({.top_p = 0}, {0, 1, 0, 0});
  // top_k leaves shares of 4/7 and 3/7.
  expect_shares({.top_k = 2, .top_p = 0.5}, {0, 1, 0, 0});
  // Temperature is applied first: at 1/2 the shares are proportional to 1, 16, 4 and 9.
  expect_shares({.temperature = 0.5, .top_p = 0.8}, {0, 16. / 25, 0, 9. / 25});
}

// If all tokens are equally likely and top_k is 8, the first k tokens have exactly k/8 of the remaining
// probability, in vocabularies of any size.
TEST(SampleToken, KeepsNoMoreTokensThanTopPNeeds) {
  for (const std::size_t vocabulary : {8u, 1000u, 8192u, 1u << 17})
    for (int k = 1; k <= 8; ++k)
      EXPECT_EQ(nn::sample_token(std::vector<float>(vocabulary), {.top_k = 8, .top_p = k / 8.},
                                 std::nextafter(1, 0)),
                k - 1)
          << vocabulary << " tokens";
}

// The probability of token 0 is 2 / 2^59. If all weights were summed in f64, this token's weight would be
// lost.
TEST(SampleToken, KeepsTheUnlikeliestTokenIfAllAreKept) {
  const std::vector<float> logits{-40, 0, -100, -100, -100, -100, -100, -100};
  for (const std::int64_t top_k : {0, 2, 8})
    EXPECT_EQ(nn::sample_token(logits, {.top_k = top_k, .top_p = 1}, 0), 0) << top_k;
  EXPECT_EQ(nn::sample_token(logits, {.top_k = 1, .top_p = 1}, 0), 1);
}

TEST(SampleToken, ReportsASettingBeforeTheDraw) {
  const auto message = [](const nn::Sampling& s, double u) -> std::string {
    try {
      nn::sample_token(four, s, u);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message({.top_p = 2}, 7).substr(0, 34), "[sample] top_p is out of range: go");
  EXPECT_EQ(message({}, 7).substr(0, 30), "[sample] u is out of range: go");
}

TEST(SampleToken, NeverDrawsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const nn::Sampling& s : {nn::Sampling{}, nn::Sampling{.top_k = 3}, nn::Sampling{.top_p = 0.999}}) {
    EXPECT_EQ(shares(s, {nan, 0, nan})[1], 1);
    EXPECT_EQ(shares(s, {-inf, 0, nan})[1], 1);
  }
}

}  // namespace
