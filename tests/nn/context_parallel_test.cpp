// Tests models on several ranks, which divide each sequence among themselves. Up to rounding, the loss and
// gradients must be the same as on one rank.
#include "tests/support/ranks_training.h"

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

// Returns tokens i32 [rows, context], starting after `shift` tokens.
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

// Returns the losses and norms of training steps. Also returns the loss of a later evaluation, which is
// summed over the rank's targets. With `divides`, the ranks also shard the update.
std::vector<double> trained_on_tokens(Communicator& ranks, std::int64_t accumulate, bool divides) {
  using namespace tg::testing;
  nn::Params params(1);
  const nn::Model model(params, ranks_gpt());
  const auto group =
      ranks.size() > 1 ? std::shared_ptr<Communicator>(std::shared_ptr<void>(), &ranks) : nullptr;
  const optim::AdamW optimizer(params.all(), {.clip = 0.5, .ranks = divides ? group : nullptr});
  const train::ProgramOptions options{
      .batch = rank_batch, .threads = 1, .accumulate = accumulate, .ranks = group, .context_parallel = true};
  train::TrainingProgram training(model, optimizer, options);
  train::EvaluationProgram evaluation(model, options);
  std::vector<double> numbers;
  for (std::int64_t n = 0; n < 5; ++n) {
    const StepRows rows(n, accumulate);
    const auto r = training.run(rows.x, rows.y, 1e-2);
    numbers.insert(numbers.end(), {r.loss, r.grad_norm});
  }
  training.gather_weights();
  const StepRows rows(7, 1);
  const double own = evaluation.run(rows.x, rows.y);
  numbers.push_back(own * static_cast<double>(evaluation.own_targets(rows.y)));
  return numbers;
}

// One entry per rank.
std::vector<std::vector<double>> all_trained_on_tokens(int n, std::int64_t accumulate, bool divides) {
  std::vector<std::vector<double>> all;
  const auto run = [&](Communicator& ranks) {
    const std::vector<double> numbers = trained_on_tokens(ranks, accumulate, divides);
    std::string bytes;
    tg::testing::append(bytes, numbers.data(), numbers.size() * sizeof(double));
    return bytes;
  };
  for (const std::string& bytes : ask_ranks(n, run, 120)) {
    all.emplace_back(bytes.size() / sizeof(double));
    std::memcpy(all.back().data(), bytes.data(), bytes.size());
  }
  return all;
}

TEST(ContextParallelTraining, StepsMatchOneRank) {
  for (const std::int64_t accumulate : {1, 2, 3}) {
    const std::vector<double> one = all_trained_on_tokens(1, accumulate, false)[0];
    ASSERT_EQ(one.size(), 11u);
    for (int n : {2, 4})
      for (const bool divides : {false, true}) {
        const std::string what = std::to_string(n) + " ranks, " + std::to_string(accumulate) + " batches" +
                                 (divides ? ", the update divided" : "");
        const std::vector<std::vector<double>> all = all_trained_on_tokens(n, accumulate, divides);
        double evaluated = 0;
        for (const std::vector<double>& rank : all) {
          ASSERT_EQ(rank.size(), one.size());
          evaluated += rank.back();
          for (std::size_t i = 0; i + 1 < one.size(); ++i) {
            EXPECT_EQ(rank[i], all[0][i]) << i << ", " << what;  // all ranks have the same step
            EXPECT_NEAR(rank[i], one[i], 1e-4 * std::abs(one[i])) << i << ", " << what;
          }
        }
        EXPECT_NEAR(evaluated, one.back(), 1e-4 * std::abs(one.back())) << what;
      }
  }
}

TEST(ContextParallelTraining, InvalidCallsAreRefused) {
  const std::vector<RankResult> results = ask_each_rank(3, [](Communicator& ranks) {
    trained_on_tokens(ranks, 1, false);
    return std::string();
  });
  EXPECT_NE(
      results[0].text.find("a sequence of 16 tokens cannot be divided into two equal pieces for each of "
                           "3 ranks"),
      std::string::npos)
      << results[0].text;
}

class ContextParallel : public ::testing::TestWithParam<int> {};

TEST_P(ContextParallel, LossAndGradientsMatchOneRank) {
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
          std::vector<Tensor> means = all_reduce(recorded(many, params, model, kind, n).all(), n);
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

TEST(ContextParallelScope, BelongsToOneGraphAndEnds) {
  Graph g, other;
  EXPECT_EQ(nn::ContextParallel::ranks(g), 1);
  {
    const nn::ContextParallel outer(g, 4);
    const nn::ContextParallel inner(other, 2);
    EXPECT_EQ(nn::ContextParallel::ranks(g), 4);
    EXPECT_EQ(nn::ContextParallel::ranks(other), 2);
    EXPECT_EQ(nn::ContextParallel::positions(g, 6).shape(), (Shape{6}));
    EXPECT_EQ(nn::ContextParallel::positions(g, 6).id(), nn::ContextParallel::positions(g, 6).id());
    // All ranks together have 0 to 2^31 tokens, and each rank has an even number of tokens.
    EXPECT_EQ(nn::ContextParallel::positions(g, 0).shape(), (Shape{0}));
    EXPECT_EQ(nn::ContextParallel::positions(g, (1 << 29) - 2).shape(), (Shape{(1 << 29) - 2}));
    for (const std::int64_t length : {-2, 1 << 29})
      EXPECT_THROW(nn::ContextParallel::positions(g, length), ShapeError) << length;
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

TEST(ContextParallelScope, InvalidCallsAreRefused) {
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
            }).find("dropout is not supported on several ranks"),
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
