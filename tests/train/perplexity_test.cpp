// Compares perplexity with a loop over the tokens. For each token, the loop runs the model on all previous
// tokens.
#include <tilegrad/train/perplexity.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/ops/ops.h>
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;
using Tokens = std::vector<std::int32_t>;

constexpr std::int64_t context = 8, vocabulary = 11;

nn::Model model_on(nn::Params& params) {
  return {params,
          {.vocabulary = vocabulary, .context = context, .layers = 2, .heads = 2, .width = 8, .std = 0.5}};
}

Tokens some_tokens(std::size_t n) {
  Tokens tokens(n);
  for (std::size_t i = 0; i < n; ++i) tokens[i] = static_cast<std::int32_t>((i * i + 3 * i / 2) % vocabulary);
  return tokens;
}

// Returns −log p of the last token, given the tokens before it.
double surprise(const nn::Model& model, std::span<const std::int32_t> tokens) {
  Graph graph;
  const auto length = std::ssize(tokens) - 1;
  const Tensor x = graph.input("x", {1, length}, i32), logits = model(x);
  Program program = compile(graph, {logits});
  program.run({{x, tokens.first(tokens.size() - 1)}});
  const Array all = program.fetch(logits);
  const float* row = all.data<float>() + (length - 1) * vocabulary;
  double sum = 0;
  for (std::int64_t v = 0; v < vocabulary; ++v) sum += std::exp(double{row[v]});
  return std::log(sum) - double{row[tokens.back()]};
}

// Implements the definition directly, with one window per stride. The new tokens of a window count, except
// the window's first token.
struct Expected {
  double nats = 0;
  std::int64_t tokens = 0, windows = 0;
};
Expected by_recipe(const nn::Model& model, const Tokens& tokens, std::int64_t stride) {
  Expected sum;
  const auto n = static_cast<std::int64_t>(tokens.size());
  std::int64_t before = 0;
  for (std::int64_t begin = 0; begin < n; begin += stride) {
    const std::int64_t end = std::min(begin + context, n), fresh = end - before;
    ++sum.windows;
    for (std::int64_t i = end - fresh; i < end; ++i) {
      if (i == begin) continue;
      sum.nats += surprise(model, std::span(tokens).subspan(static_cast<std::size_t>(begin),
                                                            static_cast<std::size_t>(i + 1 - begin)));
      ++sum.tokens;
    }
    before = end;
    if (end == n) break;
  }
  return sum;
}

TEST(Perplexity, MatchesALoopOverTheTokens) {
  nn::Params params(3);
  const nn::Model model = model_on(params);
  for (const std::size_t n : {2u, 7u, 8u, 9u, 16u, 17u, 30u}) {
    const Tokens tokens = some_tokens(n);
    for (const std::int64_t stride : {1, 3, 4, 7, 8}) {
      const Expected expected = by_recipe(model, tokens, stride);
      for (const std::int64_t batch : {1, 3}) {
        const train::Perplexity got =
            train::perplexity(model, tokens, {.stride = stride, .batch = batch, .threads = 1});
        EXPECT_EQ(got.tokens, expected.tokens) << n << " tokens, stride " << stride;
        EXPECT_EQ(got.windows, expected.windows);
        EXPECT_NEAR(got.nats, expected.nats, 1e-5 * expected.nats) << n << " tokens, stride " << stride;
        EXPECT_NEAR(got.value(), std::exp(expected.nats / static_cast<double>(expected.tokens)),
                    1e-4 * got.value());
      }
    }
  }
}

TEST(Perplexity, StrideBelowContextPredictsAllButTheFirstToken) {
  nn::Params params(3);
  const nn::Model model = model_on(params);
  const Tokens tokens = some_tokens(29);
  EXPECT_EQ(train::perplexity(model, tokens, {.stride = 7}).tokens, 28);
  EXPECT_EQ(train::perplexity(model, tokens, {.stride = 8}).tokens,
            25);  // 4 windows, each without its first token
  EXPECT_EQ(train::perplexity(model, tokens).windows,
            train::perplexity(model, tokens, {.stride = 4}).windows);
}

TEST(Perplexity, ContextOfOneTokenPredictsNothing) {
  nn::Params params(3);
  const nn::Embedding table(nn::Path(params) / "table", vocabulary, vocabulary);
  const nn::LanguageModel model{
      .features = [&](TensorArg ids, const nn::CallArgs& call) { return table(ids, call); },
      .context = 1,
      .parameters = params.all()};
  const train::Perplexity got = train::perplexity(model, some_tokens(5), {.threads = 1});
  EXPECT_EQ(got.nats, 0);
  EXPECT_EQ(got.tokens, 0);
  EXPECT_EQ(got.windows, 5);
}

// perplexity() passes its options to the program. In bf16, logits are rounded.
TEST(Perplexity, UsesTheRequestedPrecision) {
  nn::Params params(3);
  const nn::Model model = model_on(params);
  const auto nats = [&](nn::Precision precision) {
    return train::perplexity(model, some_tokens(29), {.threads = 1, .precision = precision}).nats;
  };
  const double full = nats(nn::Precision::full), rounded = nats(nn::Precision::bf16);
  EXPECT_NE(rounded, full);
  EXPECT_NEAR(rounded, full, 0.02 * full);
  const train::Perplexity none;
  EXPECT_EQ(none.nats, 0);
  EXPECT_EQ(none.tokens + none.windows, 0);
}

TEST(Perplexity, StopsOnRequest) {
  nn::Params params(3);
  const nn::Model model = model_on(params);
  std::vector<std::int64_t> seen;
  train::perplexity(model, some_tokens(29), {.stride = 4, .batch = 2, .progress = [&](auto done, auto all) {
                                               seen.insert(seen.end(), {done, all});
                                               return done < 4;
                                             }});
  EXPECT_EQ(seen, (std::vector<std::int64_t>{2, 7, 4, 7}));
}

TEST(Perplexity, RejectsInvalidInput) {
  nn::Params params(3);
  const nn::Model model = model_on(params);
  EXPECT_NE(error_of([&] { train::perplexity(model, some_tokens(1)); }).find("2 tokens or more, got 1"),
            std::string::npos);
  for (const std::int64_t stride : {-1, 9})
    EXPECT_NE(error_of([&] {
                train::perplexity(model, some_tokens(9), {.stride = stride});
              }).find("from 1 to the context of 8, got " + std::to_string(stride)),
              std::string::npos);
}

}  // namespace
