// Tests LoRA on every architecture. Checks the parameters that LoRA adds and freezes. Merging must not change
// results.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <tilegrad/core/base/random.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/models/lora.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/train/training.h>
#include "tests/support/files.h"
#include "tests/support/small_models.h"

namespace {

using namespace tg;
using tg::testing::error_of;
using tg::testing::small_models;
using tg::testing::SmallModel;

constexpr std::int64_t length = 12;
const std::vector<std::int32_t> tokens{3, 1, 41, 59, 26, 5, 35, 8, 9, 7, 9, 32};
const std::vector<std::int32_t> targets{1, 41, 59, 26, 5, 35, 8, 9, 7, 9, 32, 3};

std::vector<float> logits_of(const nn::Model& model, nn::Precision precision = nn::Precision::full) {
  Graph graph;
  const Tensor input = graph.input("tokens", {1, length}, i32);
  const nn::Autocast autocast(graph, precision);
  const Tensor logits = cast(model(input), f32);
  Program program = compile(graph, {logits}, {.threads = 1});
  program.run({{input, tokens}});
  return program.fetch(logits).values<float>();
}

// Sets the adapters as after training, when B is not zero.
void fill(const nn::Model& model, double std = 0.1) {
  std::uint64_t key = 1;
  for (const nn::LoraModule& m : model.lora()->modules) {
    Parameter b = m.b;
    b.write(normal_array(b.shape(), b.dtype(), 0, std, ++key));
  }
}

double largest(const std::vector<float>& x) {
  double most = 0;
  for (const float e : x) most = std::max(most, std::abs(static_cast<double>(e)));
  return most;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(double{a[i]} - double{b[i]}));
  return most;
}

TEST(Lora, ChangesNothingAtFirstAndCanBeRemoved) {
  for (const SmallModel& kind : small_models(length)) {
    for (const DType dtype : {f32, bf16}) {
      nn::Params params(1, dtype);
      nn::Model model(params, kind.config);
      const std::vector<float> base = logits_of(model);
      const std::size_t own = model.parameters().size();
      nn::add_lora(model, {.rank = 4, .targets = {}});
      ASSERT_TRUE(model.lora());
      EXPECT_EQ(model.parameters().size(), own + 2 * model.lora()->modules.size());
      EXPECT_EQ(logits_of(model), base) << kind.name << ' ' << name_of(dtype);
      fill(model);
      EXPECT_GT(distance(logits_of(model), base), 0.01) << kind.name;
      nn::remove_lora(model);
      EXPECT_EQ(logits_of(model), base) << kind.name;
      EXPECT_EQ(model.parameters().size(), own);
      for (const Parameter& p : model.parameters()) EXPECT_FALSE(p.is_frozen());
    }
  }
}

TEST(Lora, SelectsLayersByPeftsRules) {
  nn::Params params(1);
  nn::Model model(params, small_models(length)[1].config);
  const auto modules = [&](const nn::LoraOptions& o) { return nn::lora_modules(model.linears(), o); };
  EXPECT_EQ(modules({}).size(), 14u);  // all layers except the head
  EXPECT_EQ(modules({.targets = {"lm_head"}}).size(), 1u);
  EXPECT_EQ(modules({.targets = {"q_proj", "v_proj"}}).size(), 4u);
  EXPECT_EQ(modules({.targets = {"1.mlp.down_proj"}})[0].name, "model.layers.1.mlp.down_proj");
  EXPECT_EQ(modules({.targets = {"model.layers.0.self_attn.o_proj"}}).size(), 1u);
  const auto some = modules({.rank = 4,
                             .alpha = 6,
                             .rank_stabilized = true,
                             .targets = {"q_proj", "k_proj"},
                             .ranks = {{"k_proj", 9}},
                             .alphas = {{"layers.1.self_attn.k_proj", 12}}});
  ASSERT_EQ(some.size(), 4u);
  EXPECT_EQ(some[0].rank, 4);
  EXPECT_DOUBLE_EQ(some[0].scale, 3);
  EXPECT_EQ(some[1].rank, 9);
  EXPECT_DOUBLE_EQ(some[1].scale, 2);
  EXPECT_DOUBLE_EQ(some[3].scale, 4);
  EXPECT_DOUBLE_EQ(modules({.rank = 4, .alpha = 6})[0].scale, 1.5);

  EXPECT_EQ(
      error_of([&] { modules({.targets = {"proj"}}); }),
      "[lora] target \"proj\" is not a Linear layer of the model, which has down_proj, gate_proj, k_proj, "
      "lm_head, o_proj, q_proj, up_proj, v_proj");
  EXPECT_NE(error_of([&] { modules({.rank = 0}); }).find("rank is out of range: got 0"), std::string::npos);
  EXPECT_NE(error_of([&] { modules({.dropout = 1}); }).find("dropout"), std::string::npos);
  EXPECT_NE(error_of([&] { modules({.alpha = NAN}); }).find("alpha"), std::string::npos);
  const std::string not_chosen = " \"k_proj\" is not a Linear layer of the model, which has q_proj";
  EXPECT_EQ(error_of([&] {
              modules({.targets = {"q_proj"}, .ranks = {{"k_proj", 3}}});
            }),
            "[lora] a key of ranks," + not_chosen);
  EXPECT_EQ(error_of([&] {
              modules({.targets = {"q_proj"}, .alphas = {{"k_proj", 3}}});
            }),
            "[lora] a key of alphas," + not_chosen);
  const std::string two_keys =
      " has two keys of model.layers.0.self_attn.k_proj: \"k_proj\" and \"self_attn.k_proj\"";
  EXPECT_EQ(error_of([&] {
              modules({.ranks = {{"k_proj", 3}, {"self_attn.k_proj", 4}}});
            }),
            "[lora] ranks" + two_keys);
  EXPECT_EQ(error_of([&] {
              modules({.alphas = {{"k_proj", 3}, {"self_attn.k_proj", 4}}});
            }),
            "[lora] alphas" + two_keys);
  EXPECT_EQ(error_of([&] {
              modules({.ranks = {{"k_proj", 3}, {"self_attn.k_proj", 4}},
                       .alphas = {{"k_proj", 3}, {"self_attn.k_proj", 4}}});
            }),
            "[lora] ranks" + two_keys);
  nn::add_lora(model, {});
  EXPECT_NE(error_of([&] { nn::add_lora(model, {}); }).find("has an adapter"), std::string::npos);
}

// A module may consist of several Linear layers. Each has its own rows of B.
TEST(Lora, LayersFitInTheirModule) {
  nn::Params params(1);
  const nn::Model model(params, small_models(length)[1].config);
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max();
  // The module qkv_proj consists of q_proj, k_proj and v_proj, with 64, 32 and 32 outputs.
  const nn::ModuleRows q{"qkv_proj", 0, 128}, k{"qkv_proj", 64, 128}, v{"qkv_proj", 96, 128};
  struct Case {
    std::vector<nn::ModuleRows> of_layer;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{q, k, v}, "no error"},
      {{{"q", 0, 64}, {"k", 0, 32}, {"v", 8, 40}}, "no error"},
      {{{"q", -1, 64}}, "q_proj [64, 64] is to be the rows from -1 of q [64, 64]"},
      {{{"q", 1, 64}}, "q_proj [64, 64] is to be the rows from 1 of q [64, 64]"},
      {{{"q", huge, 64}}, "q_proj [64, 64] is to be the rows from 9223372036854775807 of q [64, 64]"},
      {{{"q", 0, 63}}, "q_proj [64, 64] is to be the rows from 0 of q [63, 64]"},
      {{{"q", 0, -huge}}, "q_proj [64, 64] is to be the rows from 0 of q [-9223372036854775807, 64]"},
      {{q, {"qkv_proj", -1, 128}, v}, "k_proj [32, 64] is to be the rows from -1 of qkv_proj [128, 64]"},
      {{q, {"qkv_proj", 64, 127}, v}, "k_proj [32, 64] is to be the rows from 64 of qkv_proj [127, 64]"},
      {{q, {"qkv_proj", 64, 129}, v}, "k_proj [32, 64] is to be the rows from 64 of qkv_proj [129, 64]"},
      {{q, k, {"qkv_proj", 97, 128}}, "v_proj [32, 64] is to be the rows from 97 of qkv_proj [128, 64]"}};
  const std::vector<nn::LinearSlot> three(model.linears().begin(), model.linears().begin() + 3);
  for (const Case& c : cases) {
    const std::string error = error_of([&] {
      const auto modules = nn::lora_modules(three, {}, [&](const nn::LinearSlot& linear) {
        for (std::size_t i = 0; i < c.of_layer.size(); ++i)
          if (three[i].path == linear.path) return c.of_layer[i];
        return nn::ModuleRows{linear.path, 0, linear.out};
      });
      for (const nn::LoraModule& m : modules)
        for (const auto& part : m.parts) EXPECT_LE(part.first_row + part.linear.out, m.out);
    });
    EXPECT_EQ(error, c.error == "no error" ? c.error : "[lora] model.layers.0.self_attn." + c.error);
  }
  // All layers of a module must read the same inputs.
  const std::string error = error_of([&] {
    nn::lora_modules(model.linears(), {}, [](const nn::LinearSlot&) {
      return nn::ModuleRows{"all", 0, 1000};
    });
  });
  EXPECT_NE(error.find("mlp.down_proj [64, "), std::string::npos) << error;
  EXPECT_NE(error.find("is to be the rows from 0 of all [1000, 64]"), std::string::npos) << error;
}

TEST(Lora, StartsLikePeft) {
  nn::Params params(1);
  nn::Model model(params, small_models(length)[1].config);
  nn::add_lora(model, {.rank = 8, .seed = 5});
  for (const nn::LoraModule& m : model.lora()->modules) {
    const double bound = 1 / std::sqrt(static_cast<double>(m.in));
    const std::vector<float> a = m.a.read().values<float>(), b = m.b.read().values<float>();
    EXPECT_LE(largest(a), bound);
    EXPECT_GT(largest(a), 0.97 * bound);
    double squares = 0;
    for (const float x : a) squares += double{x} * double{x};
    EXPECT_NEAR(squares / static_cast<double>(a.size()), bound * bound / 3, 0.15 * bound * bound / 3);
    EXPECT_EQ(largest(b), 0);
  }
}

// Counts the GEMMs of a training step. Also counts the GEMMs whose result has the shape of a weight.
struct Products {
  std::size_t all = 0, of_weights = 0;
};

Products products_of_step(const nn::Model& model, const optim::Optimizer& optimizer) {
  Graph graph;
  const Tensor x = graph.input("tokens", {1, length}, i32), y = graph.input("targets", {1, length}, i32);
  const Tensor loss = cross_entropy(model(x, {.mode = nn::Mode::train}), y);
  optimizer.minimize(loss);
  std::set<std::vector<std::int64_t>> weights;
  for (const nn::LinearSlot& l : model.linears()) {
    weights.insert({l.in, l.out});
    weights.insert({l.out, l.in});
  }
  Products count;
  for (const Node& node : graph.nodes()) {
    if (node.op != &matmul_op) continue;
    ++count.all;
    const Shape& shape = graph.tensor(node.first_out).shape();
    if (weights.contains({shape.begin(), shape.end()})) ++count.of_weights;
  }
  return count;
}

TEST(Lora, ComputesNoGradientOfAFrozenWeight) {
  nn::Params params(1);
  nn::ModelConfig config = small_models(length)[0].config;
  config.layers = 1;
  nn::Model model(params, config);
  // c_attn, c_proj, c_fc, c_proj and the head each have a GEMM and two gradients. The gradient of the first
  // layer's input is needed for the embeddings.
  const Products full = products_of_step(model, optim::AdamW(model.parameters()));
  EXPECT_EQ(full.all, 15u);
  EXPECT_EQ(full.of_weights, 4u);  // the head's weight is the embedding's
  nn::add_lora(model, {.rank = 3, .targets = {"c_attn"}});
  // The forward pass has 5 GEMMs, and 2 for the adapter. The backward pass has 4 GEMMs for the inputs of
  // layers. c_attn needs no such gradient, because nothing before it is trained. The adapter has 3 more: for
  // both of its weights and for the input of B.
  const Products lora = products_of_step(model, optim::AdamW(model.parameters()));
  EXPECT_EQ(lora.all, 5u + 2 + 4 + 3);
  EXPECT_EQ(lora.of_weights, 0u);
}

// The initial weights are bf16 numbers, in parameters of either dtype. They are drawn in bf16, so each number
// is rounded once. If numbers were drawn in f32 and then rounded, they would differ.
struct RoundedModel {
  nn::Params params;
  nn::Model model;
  RoundedModel(const nn::ModelConfig& config, DType dtype) : params(1, dtype), model(params, config) {
    nn::Params drawn(1, bf16);
    const std::vector<Parameter> weights = nn::Model(drawn, config).parameters();
    for (std::size_t i = 0; i < weights.size(); ++i) {
      Parameter p = model.parameters()[i];
      p.write(weights[i].read().to(dtype));
    }
  }
};

TEST(Lora, StartsAtTheLossOfTrainingAllParameters) {
  for (const SmallModel& kind : small_models(length)) {
    RoundedModel whole(kind.config, f32), base(kind.config, bf16);
    nn::add_lora(base.model, {.rank = 4});
    const train::ProgramOptions o{.batch = 1, .threads = 1, .precision = nn::Precision::bf16};
    EXPECT_EQ(train::EvaluationProgram(base.model, o).run(tokens, targets),
              train::EvaluationProgram(whole.model, o).run(tokens, targets))
        << kind.name;
    const optim::AdamW adapters(base.model.parameters()), all(whole.model.parameters());
    EXPECT_EQ(train::TrainingProgram(base.model, adapters, o).run(tokens, targets, 0.01).loss,
              train::TrainingProgram(whole.model, all, o).run(tokens, targets, 0.01).loss)
        << kind.name;
  }
}

// Logits of a bf16 base model must not be wider than the logits of an f32 base model.
TEST(Lora, NeedsLessMemoryThanTrainingAllParameters) {
  for (const SmallModel& kind : small_models(length)) {
    nn::ModelConfig config = kind.config;
    config.vocabulary = 2000;
    RoundedModel whole(config, f32), base(config, bf16);
    nn::add_lora(base.model, {.rank = 4});
    const train::ProgramOptions o{
        .batch = 64, .threads = 1, .plan_only = true, .precision = nn::Precision::bf16};
    const optim::AdamW all(whole.model.parameters()), adapters(base.model.parameters());
    const MemoryReport most = train::TrainingProgram(whole.model, all, o).memory(),
                       less = train::TrainingProgram(base.model, adapters, o).memory();
    EXPECT_LT(less.arena, most.arena) << kind.name;
    EXPECT_LT(less.parameters, most.parameters / 3) << kind.name;
    EXPECT_LT(train::EvaluationProgram(base.model, o).program().memory().arena,
              1.1 * static_cast<double>(train::EvaluationProgram(whole.model, o).program().memory().arena))
        << kind.name;
  }
}

TEST(Lora, TrainsOnlyTheAdapters) {
  for (const SmallModel& kind : small_models(length)) {
    for (const auto& [dtype, precision] :
         {std::pair(f32, nn::Precision::full), {bf16, nn::Precision::full}, {bf16, nn::Precision::bf16}}) {
      nn::Params params(1, dtype);
      nn::Model model(params, kind.config);
      std::vector<std::vector<float>> before;
      for (const Parameter& p : model.parameters()) before.push_back(p.read().to(f32).values<float>());
      const std::vector<float> base = logits_of(model, precision);
      nn::add_lora(model, {.rank = 4, .alpha = 8, .dropout = 0.05});
      const optim::AdamW optimizer(model.parameters(), {.weight_decay = 0});
      EXPECT_EQ(optimizer.parameters().size(), 2 * model.lora()->modules.size());
      for (const Parameter& p : optimizer.state()) {
        EXPECT_EQ(p.dtype(), f32) << p.name();
        const bool of_adapter = p.name().find(".lora_") != std::string::npos;
        EXPECT_EQ(of_adapter, p.name().starts_with("optimizer.m.") || p.name().starts_with("optimizer.v."));
      }
      train::TrainingProgram step(model, optimizer, {.batch = 1, .threads = 1, .precision = precision});
      float first = 0, last = 0;
      for (int i = 0; i < 60; ++i) {
        last = step.run(tokens, targets, 0.01).loss;
        if (i == 0) first = last;
      }
      EXPECT_LT(last, 0.5F * first) << kind.name << ' ' << name_of(dtype);
      for (std::size_t i = 0; i < before.size(); ++i)
        EXPECT_EQ(model.parameters()[i].read().to(f32).values<float>(), before[i]);
      EXPECT_GT(distance(logits_of(model, precision), base), 0.1);
    }
  }
}

// Logits need most of the memory of this step. Their type must be the same if the head's weight is stored in
// bf16.
TEST(Lora, NeedsLessMemoryThanAllParameters) {
  for (const bool tied : {true, false}) {
    const nn::ModelConfig config{
        .vocabulary = 8192, .context = 32, .layers = 1, .heads = 2, .width = 32, .tied_head = tied};
    std::size_t arena[2], all[2];
    for (const bool has_lora : {false, true}) {
      nn::Params params(1, has_lora ? bf16 : f32);
      nn::Model model(params, config);
      if (has_lora) nn::add_lora(model, {.rank = 2});
      const train::ProgramOptions options{.batch = 2, .threads = 1, .precision = nn::Precision::bf16};
      const MemoryReport memory =
          train::plan_memory(model, optim::AdamW(model.parameters()), options).training;
      arena[has_lora] = memory.arena, all[has_lora] = memory.peak();
    }
    EXPECT_LT(arena[1], arena[0]);
    EXPECT_LT(static_cast<double>(all[1]), 0.5 * static_cast<double>(all[0]));
  }
}

// In f64, the difference of the two results is below the rounding error of f32. In f32, rounding depends on
// the order of each sum, and so on the instruction set. With AVX2, the difference is 1.02e-6.
TEST(Lora, MergedModelsComputeTheSame) {
  for (const SmallModel& kind : small_models(length)) {
    for (const auto& [dtype, bound] : {std::pair{f64, 0x1p-23}, {f32, 2e-6}}) {
      nn::Params params(1, dtype);
      nn::Model model(params, kind.config);
      nn::add_lora(model, {.rank = 4, .targets = {}});
      fill(model);
      const std::vector<float> apart = logits_of(model);
      nn::merge_lora(model);
      EXPECT_FALSE(model.lora());
      EXPECT_LE(distance(logits_of(model), apart), bound * std::max(1.0, largest(apart)))
          << kind.name << ' ' << name_of(dtype);
    }
  }
}

TEST(Lora, MergingRoundsOnce) {
  const Array w = normal_array({5, 7}, bf16, 0, 1, 1), a = normal_array({2, 7}, f32, 0, 1, 2),
              b = normal_array({5, 2}, f32, 0, 1, 3);
  const std::vector<float> exact_w = w.to(f32).values<float>(), x = a.values<float>(), y = b.values<float>();
  const std::vector<float> got = nn::merged_weight(w, b, a, 0.3, bf16).to(f32).values<float>();
  for (std::size_t i = 0; i < 5; ++i) {
    for (std::size_t j = 0; j < 7; ++j) {
      const double sum =
          exact_w[i * 7 + j] + 0.3 * (double{y[i * 2]} * x[j] + double{y[i * 2 + 1]} * x[7 + j]);
      EXPECT_LE(std::abs(got[i * 7 + j] - sum), std::abs(sum) * 0x1.01p-8);
    }
  }
}

// If there is a cache, MLA multiplies by the weight of kv_b_proj in a different order.
TEST(Lora, MatchesWithACache) {
  for (const SmallModel& kind : small_models(length)) {
    nn::Params params(1);
    nn::Model model(params, kind.config);
    nn::add_lora(model, {.rank = 4, .targets = {}});
    fill(model);
    nn::Generator cached(model, {.threads = 1}), plain(model, {.threads = 1, .cache = false});
    for (const std::size_t n : {3u, 4u, 9u}) {
      const std::span<const float> x = cached.next(std::span(tokens).first(n));
      const std::vector<float> got(x.begin(), x.end());
      const std::span<const float> z = plain.next(std::span(tokens).first(n));
      const std::vector<float> expected(z.begin(), z.end());
      EXPECT_LE(distance(got, expected), 2e-6 * std::max(1.0, largest(expected))) << kind.name;
    }
  }
}

TEST(Lora, HasDropoutInTrainingOnly) {
  for (const SmallModel& kind : small_models(length)) {
    nn::Params params(1);
    nn::Model model(params, kind.config);
    for (const nn::LinearSlot& linear : model.linears()) {  // dropout reaches every layer
      nn::add_lora(model, {.rank = 4, .targets = {linear.path}});
      fill(model, 1);
      const std::vector<float> without = logits_of(model);
      nn::remove_lora(model);
      nn::add_lora(model, {.rank = 4, .dropout = 0.5, .targets = {linear.path}});
      fill(model, 1);
      EXPECT_EQ(logits_of(model), without);
      Graph graph;
      const Tensor input = graph.input("tokens", {1, length}, i32);
      const Tensor logits = copy(model(input, {.mode = nn::Mode::train}));
      Program program = compile(graph, {logits}, {.threads = 1});
      program.run({{input, tokens}});
      EXPECT_EQ(distance(program.fetch(logits).values<float>(), without) > 1e-3, !linear.is_head)
          << kind.name << ' ' << linear.path;
      nn::remove_lora(model);
    }
  }
}

TEST(Frozen, ParametersHaveNoGradientAndNoState) {
  for (const char* kind : {"adamw", "sgd", "muon"}) {
    nn::Params params(1);
    nn::Model model(params, small_models(length)[1].config);
    for (Parameter p : model.parameters())
      if (p.name().find(".layers.0.") == std::string::npos && p.name() != "lm_head.weight") p.freeze();
    std::vector<Parameter> trained;
    for (const Parameter& p : model.parameters())
      if (!p.is_frozen()) trained.push_back(p);
    ASSERT_EQ(trained.size(), 10u);
    std::unique_ptr<optim::Optimizer> optimizer;
    if (std::string(kind) == "adamw") optimizer = std::make_unique<optim::AdamW>(model.parameters());
    if (std::string(kind) == "sgd")
      optimizer = std::make_unique<optim::Sgd>(model.parameters(), optim::Sgd::Options{.momentum = 0.9});
    if (std::string(kind) == "muon") optimizer = std::make_unique<optim::Muon>(model.parameters());
    EXPECT_EQ(optimizer->parameters().size(), trained.size());
    for (const Parameter& p : optimizer->state()) EXPECT_EQ(p.name().find("layers.1"), std::string::npos);
    std::vector<std::vector<float>> before;
    for (const Parameter& p : model.parameters()) before.push_back(p.read().values<float>());
    train::TrainingProgram step(model, *optimizer, {.batch = 1, .threads = 1});
    for (int i = 0; i < 3; ++i) step.run(tokens, targets, 0.01);
    for (std::size_t i = 0; i < before.size(); ++i) {
      const Parameter& p = model.parameters()[i];
      EXPECT_EQ(p.read().values<float>() == before[i], p.is_frozen()) << kind << ' ' << p.name();
    }
  }
  nn::Params params(1);
  nn::Model model(params, small_models(length)[0].config);
  for (Parameter p : model.parameters()) p.freeze();
  EXPECT_NE(error_of([&] { optim::AdamW(model.parameters()); }).find("is frozen"), std::string::npos);
}

}  // namespace
