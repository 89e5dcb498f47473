// Tests Model::loss. It must always equal cross_entropy of the head's logits. Some models must compute it
// without logits.
#include <gtest/gtest.h>

#include <cmath>

#include <tilegrad/nn/models/lora.h>
#include <tilegrad/tilegrad.h>
#include "tests/support/small_models.h"

namespace {

using namespace tg;
using namespace tg::testing;

bool uses(const Graph& g, std::string_view op) {
  return std::ranges::any_of(g.nodes(), [&](const Node& n) { return n.op->name == op; });
}

std::vector<std::int32_t> numbers(std::size_t n, std::size_t step) {
  std::vector<std::int32_t> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<std::int32_t>(i * step % 61);
  return x;
}

// Records a model's loss and the loss of its logits.
struct Losses {
  Graph g;
  Tensor tokens, targets;
  Tensor loss, of_logits;
  bool has_logits;  // whether the model's loss has logits

  Losses(const nn::Model& model, nn::Precision precision, std::int64_t batch = 2,
         const nn::LossOptions& options = {})
      : tokens(g.input("tokens", {batch, 12}, i32)), targets(g.input("targets", {batch, 12}, i32)) {
    const nn::Autocast autocast(g, precision, true);
    const Tensor x = model.features(tokens);
    loss = model.loss(x, targets, options);
    has_logits = uses(g, "cross_entropy");
    EXPECT_NE(has_logits, uses(g, "linear_cross_entropy"));
    of_logits = cross_entropy(model.head(x), targets);
  }
};

// Returns the distance of a from b, relative to the norm of b.
double apart(const Array& a, const Array& b) {
  const auto x = a.to(f64).values<double>(), y = b.to(f64).values<double>();
  double squares = 0, all = 0;
  for (std::size_t k = 0; k < x.size(); ++k) squares += (x[k] - y[k]) * (x[k] - y[k]), all += y[k] * y[k];
  return all == 0 ? std::sqrt(squares) : std::sqrt(squares / all);
}

TEST(ModelLoss, MatchesTheLossOfTheLogits) {
  for (const auto& [name, config] : small_models(12))
    for (const nn::Precision precision : {nn::Precision::bf16, nn::Precision::f16, nn::Precision::full}) {
      SCOPED_TRACE(name);
      nn::Params params(3);
      const nn::Model model(params, config);
      Losses l(model, precision);
      EXPECT_EQ(l.has_logits, precision == nn::Precision::full);
      std::vector<Tensor> weights, results{l.loss, l.of_logits};
      for (const Parameter& p : params.all()) weights.push_back(l.g.param(p));
      for (const Tensor& z : gradients(l.loss, weights)) results.push_back(z);
      for (const Tensor& z : gradients(l.of_logits, weights)) results.push_back(z);
      std::vector<std::int32_t> targets = numbers(24, 11);
      targets[5] = -100;
      const auto v = eval(results, {{l.tokens, numbers(24, 7)}, {l.targets, targets}});
      EXPECT_TRUE(v[0].same_bits(v[1]));
      const double rounding = precision == nn::Precision::bf16 ? 0x1p-8 : 0x1p-11;
      for (std::size_t i = 0; i < weights.size(); ++i)
        EXPECT_LE(apart(v[2 + i], v[2 + weights.size() + i]), 8 * rounding) << params.all()[i].name();
    }
}

// If there are enough rows for chunks, f32 also uses linear_cross_entropy. Results must be bitwise identical
// for any chunks.
TEST(ModelLoss, IsTheSameInChunksOfRows) {
  constexpr std::int64_t batch = 13;  // 156 rows
  for (const auto& [name, config] : small_models(12))
    for (const nn::Precision precision : {nn::Precision::bf16, nn::Precision::full}) {
      SCOPED_TRACE(name);
      nn::Params params(3);
      const nn::Model model(params, config);
      Losses l(model, precision, batch, {.unit_rows = 64});
      EXPECT_FALSE(l.has_logits);
      const nn::Autocast autocast(l.g, precision, true);
      const Tensor chunks =
          model.loss(model.features(l.tokens), l.targets, {.chunk_rows = 7, .unit_rows = 64});
      std::vector<Tensor> weights, results{l.loss, chunks, l.of_logits};
      for (const Parameter& p : params.all()) weights.push_back(l.g.param(p));
      for (const Tensor& loss : {l.loss, chunks, l.of_logits})
        for (const Tensor& z : gradients(loss, weights)) results.push_back(z);
      std::vector<std::int32_t> targets = numbers(12 * batch, 11);
      targets[5] = -100;
      const auto v = eval(results, {{l.tokens, numbers(12 * batch, 7)}, {l.targets, targets}});
      const double rounding = precision == nn::Precision::bf16 ? 0x1p-8 : 0x1p-21;
      EXPECT_TRUE(v[1].same_bits(v[0]));
      EXPECT_LE(apart(v[0], v[2]), rounding);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const Array &whole = v[3 + i], &of_logits = v[3 + 2 * weights.size() + i];
        EXPECT_TRUE(v[3 + weights.size() + i].same_bits(whole)) << params.all()[i].name();
        EXPECT_LE(apart(whole, of_logits), 8 * rounding) << params.all()[i].name();
      }
      const nn::LossOptions few{.chunk_rows = 7, .unit_rows = 128};
      EXPECT_EQ(Losses(model, precision, batch, few).has_logits, precision == nn::Precision::full);
    }
}

// 156 rows are two units of 78.
TEST(ModelLoss, UsesChunksForAtLeastTwoUnitsOfRows) {
  nn::Params params(3);
  const nn::ModelConfig config = small_models(12)[0].config;
  const nn::Model model(params, config);
  for (const std::int64_t unit : {1, 77, 78, 79, 156})
    EXPECT_EQ(Losses(model, nn::Precision::full, 13, {.unit_rows = unit}).has_logits, unit > 78) << unit;
  const std::int64_t enough = (linear_cross_entropy_unit(config.vocabulary) + 5) / 6;  // the default unit
  EXPECT_FALSE(Losses(model, nn::Precision::full, enough).has_logits);
  EXPECT_TRUE(Losses(model, nn::Precision::full, enough - 1).has_logits);
}

// The head has an adapter, a bias, or a softcap.
TEST(ModelLoss, HasLogitsIfTheHeadIsMoreThanAProduct) {
  nn::ModelConfig config = small_models(12)[1].config;
  config.architecture = nn::Llama{.key_heads = 2, .logit_softcap = 30};
  nn::Params capped;
  EXPECT_TRUE(Losses(nn::Model(capped, config), nn::Precision::bf16).has_logits);
  config.architecture = nn::Llama{.key_heads = 2};
  nn::Params adapted;
  nn::Model model(adapted, config);
  EXPECT_FALSE(Losses(model, nn::Precision::bf16).has_logits);
  nn::add_lora(model, {.rank = 2, .targets = {"lm_head"}});
  EXPECT_TRUE(Losses(model, nn::Precision::bf16).has_logits);
  nn::Params own;
  const nn::Embedding table(nn::Path(own) / "table", 61, 16);
  const auto with_head = [&](nn::Layer head) {
    return nn::Model(nn::Path(own), {.name = "own", .context = 12, .tokens = table, .head = std::move(head)});
  };
  EXPECT_FALSE(Losses(with_head(table.head()), nn::Precision::bf16).has_logits);
  EXPECT_TRUE(Losses(with_head(nn::Linear(nn::Path(own) / "head", 16, 61)), nn::Precision::bf16).has_logits);
}

}  // namespace
