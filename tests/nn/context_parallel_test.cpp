// Models over sequences that are divided among ranks: loss and gradients of one rank, to rounding.
#include "tests/support/ranks.h"

#include <cmath>

#include <tilegrad/nn/layers/context_parallel.h>
#include <tilegrad/nn/layers/kv_cache.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/tilegrad.h>

namespace {

using namespace tg;

constexpr std::int64_t rows = 2, context = 16, vocabulary = 13;

nn::ModelConfig config_of(nn::Architecture architecture) {
  return {.architecture = std::move(architecture),
          .vocabulary = vocabulary,
          .context = context,
          .layers = 3,
          .heads = 4,
          .width = 32,
          .std = 0.3};
}

struct Kind {
  const char* name;
  nn::ModelConfig config;
  bool recompute = false;
};

std::vector<Kind> kinds() {
  return {
      {"gpt", config_of(nn::Gpt{})},
      {"gpt, recomputed", config_of(nn::Gpt{}), true},
      {"llama", config_of(nn::Llama{.key_heads = 2})},
      {"llama with windows",
       config_of(nn::Llama{.key_heads = 1, .attention_softcap = 2, .windows = {5, 0}, .rotated = {1, 0}})},
      {"deepseek", config_of(nn::DeepSeek{.latent = 6, .rope_width = 4})},
      {"deepseek, query latent",
       config_of(nn::DeepSeek{
           .latent = 6, .query_latent = 5, .rope_width = 4, .value_width = 6, .interleaved = false})}};
}

// tokens i32 [rows, context], from the one after `shift` others
Array tokens(std::int64_t shift) {
  std::vector<std::int32_t> all;
  for (std::int64_t i = shift; i < rows * context + shift; ++i)
    all.push_back(static_cast<std::int32_t>((i * i + i / 5) % vocabulary));
  return Array::of({rows, context}, all);
}

struct Results {
  Tensor loss;
  std::vector<Tensor> gradients;

  std::vector<Tensor> all() const {
    std::vector<Tensor> list{loss};
    list.insert(list.end(), gradients.begin(), gradients.end());
    return list;
  }
};

Results recorded(Graph& g, const nn::Params& params, const nn::Model& model, const Kind& kind, int ranks) {
  const nn::ContextParallel parallel(g, ranks);
  const auto own = [&](const Array& all) {
    const Tensor x = g.constant(all);
    return ranks == 1 ? x : index_select(x, 1, nn::ContextParallel::positions(g, context / ranks));
  };
  const Tensor x = model.features(own(tokens(0)), {.mode = nn::Mode::train, .recompute = kind.recompute});
  const Tensor loss = model.loss(x, own(tokens(1)));
  std::vector<Tensor> weights;
  for (const Parameter& p : params.all()) weights.push_back(g.param(p));
  return {loss, gradients(loss, weights)};
}

class ContextParallel : public ::testing::TestWithParam<int> {};

TEST_P(ContextParallel, LossAndGradientsAreThoseOfOneRank) {
  run_ranks(
      GetParam(),
      [](Communicator& ranks) {
        const int n = ranks.size();
        for (const Kind& kind : kinds()) {
          nn::Params params(1, f64);
          const nn::Model model(params, kind.config);
          Graph one, many;
          const std::vector<Array> whole =
              eval(recorded(one, params, model, kind, 1).all(), {}, {.threads = 1});
          std::vector<Tensor> means = sum_ranks(recorded(many, params, model, kind, n).all(), n);
          for (Tensor& x : means) x = x / n;
          const std::vector<Array> mean =
              eval(means, {}, {.threads = 1, .ranks = {std::shared_ptr<void>(), &ranks}});
          for (std::size_t i = 0; i < mean.size(); ++i) {
            double largest = 0, difference = 0;
            for (std::int64_t e = 0; e < mean[i].numel(); ++e) {
              largest = std::max(largest, std::abs(whole[i].at(e)));
              const double apart = std::abs(mean[i].at(e) - whole[i].at(e));
              difference = std::isfinite(apart) ? std::max(difference, apart) : INFINITY;
            }
            EXPECT_GT(largest, 0) << kind.name << ", " << i;
            EXPECT_LT(difference, 1e-12 * largest)
                << kind.name << ", " << (i == 0 ? "loss" : params.all()[i - 1].name()) << ", " << n
                << " ranks";
          }
        }
      },
      120);
}

INSTANTIATE_TEST_SUITE_P(OnRanks, ContextParallel, ::testing::Values(2, 4));

TEST(ContextParallelScope, IsOfOneGraphAndEnds) {
  Graph g, other;
  EXPECT_EQ(nn::ContextParallel::ranks(g), 1);
  {
    const nn::ContextParallel outer(g, 4);
    const nn::ContextParallel inner(other, 2);
    EXPECT_EQ(nn::ContextParallel::ranks(g), 4);
    EXPECT_EQ(nn::ContextParallel::ranks(other), 2);
    EXPECT_EQ(nn::ContextParallel::positions(g, 6).shape(), (Shape{6}));
    EXPECT_EQ(nn::ContextParallel::positions(g, 6).id(), nn::ContextParallel::positions(g, 6).id());
  }
  EXPECT_EQ(nn::ContextParallel::ranks(g), 1);
  EXPECT_FALSE(nn::ContextParallel::positions(g, 6).defined());
  EXPECT_THROW(nn::ContextParallel(g, 0), ShapeError);
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(ContextParallelScope, WhatIsRefused) {
  nn::Params params(1);
  nn::ModelConfig config = config_of(nn::Gpt{});
  config.dropout = 0.1;
  const nn::Model model(params, config);
  Graph g;
  const nn::ContextParallel parallel(g, 2);
  const Tensor half = g.input("tokens", {1, context / 2}, i32), all = g.input("all", {1, context}, i32);
  EXPECT_NE(refusal([&] { model.features(all); }).find("[batch, length up to 8]"), std::string::npos);
  EXPECT_NE(refusal([&] {
              model.features(half, {.mode = nn::Mode::train});
            }).find("there is no dropout of attention weights on several ranks"),
            std::string::npos);
  nn::KvCache cache(1, context);
  nn::CacheCall call(g, cache, context / 2);
  EXPECT_NE(refusal([&] {
              model.features(half, {.cache = &call});
            }).find("kv_cache] sequences that are divided among ranks have no cache"),
            std::string::npos);
  EXPECT_EQ(refusal([&] { model.features(half); }), "");
}

}  // namespace
