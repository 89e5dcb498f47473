// Tests mixed precision: layers that compute in a 16-bit type with f32 weights, and loss scaling.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/tilegrad.h>
#include "tests/support/small_gpt.h"

namespace {

using namespace tg;
using namespace tg::testing;

constexpr nn::Precision halves[] = {nn::Precision::bf16, nn::Precision::f16};

// Counts the steps that cast from one type to another.
std::size_t casts(const Program& program, DType from, DType to) {
  std::size_t n = 0;
  for (const Step& s : program.steps())
    n += s.name.ends_with("/cast") && !s.in.empty() && s.in[0].dtype == from && s.out[0].dtype == to;
  return n;
}

TEST(Autocast, CastsEachWeightOnceForAnyNumberOfReaders) {
  nn::Params params(1);
  const nn::Embedding table(nn::Path(params) / "table", 5, 8);
  const nn::Linear layer(nn::Path(params) / "layer", 8, 8);
  Graph g;
  const Tensor ids = g.input("ids", {3}, i32), x = g.input("x", {3, 8});
  const nn::Autocast autocast(g, nn::Precision::bf16);
  const Tensor y = table.head()(layer(layer(table(ids)) + layer(x)));
  EXPECT_EQ(y.dtype(), bf16);
  const Program program =
      compile(g, {y, gradients(sum(cast(y, f32)), {g.param(layer.weight().parameter())})[0]});
  EXPECT_EQ(casts(program, f32, bf16), 4u)
      << program.text();  // the table, the layer's weight and bias, and x
}

TEST(Autocast, AppliesToTheLayersOfItsGraphWhileItIsAlive) {
  nn::Params params(1);
  const nn::Linear layer(nn::Path(params) / "layer", 8, 8);
  const nn::LayerNorm norm(nn::Path(params) / "norm", 8);
  Graph g, other;
  const Tensor x = g.input("x", {3, 8}), elsewhere = other.input("x", {3, 8});
  {
    const nn::Autocast outer(g, nn::Precision::f16);
    {
      const nn::Autocast inner(g, nn::Precision::full);
      EXPECT_EQ(layer(x).dtype(), f32);
    }
    const nn::Autocast beside(other, nn::Precision::bf16);
    EXPECT_EQ(layer(x).dtype(), f16);
    EXPECT_EQ(layer(elsewhere).dtype(), bf16);
    EXPECT_EQ(norm(x).dtype(), f32);  // a norm keeps its input's dtype; its gains are in f32
    EXPECT_EQ(norm(layer(x)).dtype(), f16);
    EXPECT_EQ(layer(x, {.residual = x}).dtype(), f16);  // the residual is also in bf16
  }
  EXPECT_EQ(layer(x).dtype(), f32);
  EXPECT_EQ(nn::precision_named("bf16"), nn::Precision::bf16);
  EXPECT_THROW(nn::precision_named("fp8"), Error);
}

TEST(MixedPrecision, TheOptimizerReads16BitGradientsWithoutAWideningPass) {
  SmallGpt t({.precision = nn::Precision::bf16});
  const Program& program = t.training.program();
  EXPECT_EQ(casts(program, f32, bf16), 0u);  // weights have low-precision copies
  EXPECT_EQ(casts(program, bf16, f32), 0u);
  for (const Step& s : program.steps()) {
    if (s.op != &adamw_op) continue;
    for (std::size_t i = 0; i + 4 <= s.in.size() - 3; i += 4) {  // p, g, m, v
      EXPECT_EQ(s.in[i].dtype, f32);
      EXPECT_EQ(s.in[i + 1].dtype, s.in[i].layout.rank() == 2 ? bf16 : f32) << i;  // a norm's gain is f32
    }
  }
}

// bf16 has 8 bits of precision, and f16 has 11. Rounding changes single losses in both directions. So the
// early losses and the mean of the last losses are compared.
TEST(MixedPrecision, TrainsLikeF32) {
  const auto losses = [](nn::Precision p) {
    SmallGpt t({.precision = p, .loss_scale = loss_scale_for(p)});
    return t.losses(80, 2e-3);
  };
  const auto last_mean = [](const std::vector<double>& l) {
    return std::accumulate(l.end() - 20, l.end(), 0.0) / 20;
  };
  const std::vector<double> exact = losses(nn::Precision::full);
  EXPECT_LT(last_mean(exact), 0.8 * exact.front());
  for (const nn::Precision p : halves) {
    const std::vector<double> half = losses(p);
    for (std::size_t i = 0; i < 20; ++i)
      EXPECT_NEAR(half[i], exact[i], p == nn::Precision::bf16 ? 3e-3 : 5e-4) << i;
    EXPECT_NEAR(last_mean(half), last_mean(exact), 0.01);
  }
}

TEST(MixedPrecision, TF32IsExactF32OnTheCpu) {
  SmallGpt exact, tf32({.precision = nn::Precision::tf32});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(exact.step().loss, tf32.step().loss);
  EXPECT_TRUE(same_bits(exact.weights_and_moments(), tf32.weights_and_moments()));
}

TEST(MixedPrecision, MasterWeightsKeepUpdatesBelowThe16BitResolution) {
  nn::Params params(1);
  const nn::Embedding table(nn::Path(params) / "table", 1, 8);
  Parameter(table.weight().parameter()).write(Array::of<float>({1, 8}, std::vector<float>(8, 1)));
  const optim::AdamW optimizer(params.all(), {.weight_decay = 0});
  Graph g;
  const Tensor id = g.input("id", {1}, i32);
  Tensor y;
  {
    const nn::Autocast autocast(g, nn::Precision::bf16);
    y = sum(cast(table(id), f32));
  }
  const auto update = optimizer.minimize(y);
  Program program = compile(g, {y}, {.assign = update.assign, .verify = true});
  // Every gradient is 1, so every step of AdamW changes each weight by the learning rate.
  for (int step = 0; step < 10; ++step) {
    program.run({{id, std::vector<std::int32_t>{0}}, {update.learning_rate, std::vector<float>{1e-4f}}});
    EXPECT_EQ(program.item<float>(y), 8);  // 1 - 1e-3 is still 1 in bf16
  }
  for (const float w : table.weight().parameter().read().values<float>()) EXPECT_NEAR(w, 1 - 1e-3, 1e-6);
  for (int step = 0; step < 30; ++step)
    program.run({{id, std::vector<std::int32_t>{0}}, {update.learning_rate, std::vector<float>{1e-4f}}});
  EXPECT_LT(program.item<float>(y), 8);  // after more steps, the weight is less than 1 in bf16
}

TEST(MixedPrecision, EvaluationAndGenerationComputeLikeTraining) {
  const SmallBatch b;
  for (const nn::Precision p : halves) {
    SmallGpt t({.precision = p, .loss_scale = loss_scale_for(p)});
    train::EvaluationProgram evaluation(t.model, {.batch = 4, .precision = p}), exact(t.model, {.batch = 4});
    const float before = evaluation.run(b.x, b.y);
    EXPECT_EQ(t.step().loss, before);
    EXPECT_NE(before, exact.run(b.x, b.y));
    for (int i = 0; i < 80; ++i) t.step();
    EXPECT_NEAR(evaluation.run(b.x, b.y), exact.run(b.x, b.y), 0.02);
    nn::Generator generator(t.model, {.threads = 1, .precision = p});
    std::vector<std::int32_t> text(b.x.begin(), b.x.begin() + 3);
    generator.extend(text, 10, {.temperature = 0}, 1);
    EXPECT_EQ(text, std::vector<std::int32_t>(b.x.begin(), b.x.begin() + 13));
  }
}

TEST(MixedPrecision, ResultsMatchBitwisePlannedOrNotAndForAnyNumberOfThreads) {
  for (const nn::Precision p : halves) {
    SmallGptOptions o{.precision = p, .loss_scale = loss_scale_for(p), .dropout = 0.2, .verify = true};
    SmallGpt one(o);
    o.threads = 3, o.verify = false;
    SmallGpt three(o);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(one.step().loss, three.step().loss);
    EXPECT_TRUE(same_bits(one.weights_and_moments(), three.weights_and_moments()));
  }
}

TEST(LossScale, APowerOfTwoIsBitwiseExactInF32) {
  SmallGpt plain, scaled({.loss_scale = optim::LossScale{.initial = 1024, .interval = 2}});
  for (int i = 0; i < 5; ++i) {
    const auto a = plain.step(), b = scaled.step();
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
  }
  EXPECT_TRUE(same_bits(plain.weights_and_moments(), scaled.weights_and_moments()));
  EXPECT_EQ(scaled.scalar("loss_scale"), 4096);
}

TEST(LossScale, KeepsGradientsThatF16WouldLose) {
  // ∂loss/∂w = 1e-9, below the smallest number of f16 (6e-8).
  const auto norm = [](std::optional<optim::LossScale> scale) {
    nn::Params params(1);
    const nn::Linear layer(nn::Path(params) / "layer", 1, 1, {.bias = false});
    const optim::AdamW optimizer(params.all(), {.loss_scale = scale});
    Graph g;
    const Tensor x = g.input("x", {1, 1});
    Tensor loss;
    {
      const nn::Autocast autocast(g, nn::Precision::f16);
      loss = sum(cast(layer(x), f32)) * 1e-9;
    }
    const auto update = optimizer.minimize(loss);
    Program program = compile(g, {update.grad_norm}, {.assign = update.assign});
    program.run({{x, std::vector<float>{1}}, {update.learning_rate, std::vector<float>{0}}});
    return program.item<float>(update.grad_norm);
  };
  EXPECT_EQ(norm({}), 0);
  EXPECT_NEAR(norm(optim::LossScale{}), 1e-9, 1e-12);
}

TEST(LossScale, AnOverflowHalvesItSkipsTheStepAndTrainingContinues) {
  SmallGpt t({.precision = nn::Precision::f16, .loss_scale = optim::LossScale{}});
  t.step();
  t.state("loss_scale").write(Array::of<float>({}, {0x1p40f}));
  const auto before = t.weights_and_moments();
  const float steps = t.scalar("step");
  auto result = t.step();
  EXPECT_TRUE(std::isfinite(result.loss));
  EXPECT_FALSE(std::isfinite(result.grad_norm));
  EXPECT_EQ(result.loss_scale, 0x1p39f);
  EXPECT_EQ(t.scalar("loss_scale"), 0x1p39f);
  EXPECT_EQ(result.overflowed, 1);
  EXPECT_EQ(result.skipped, 0);
  EXPECT_TRUE(same_bits(t.weights_and_moments(), before));
  EXPECT_EQ(t.scalar("step"), steps);
  for (int i = 0; i < 40; ++i) result = t.step();
  EXPECT_GT(result.overflowed, 5);
  EXPECT_LT(result.overflowed, 30);
  EXPECT_EQ(result.loss_scale, std::ldexp(1.0f, 40 - static_cast<int>(result.overflowed)));
  EXPECT_EQ(t.scalar("step"), 42 - static_cast<float>(result.overflowed));
  EXPECT_TRUE(std::isfinite(result.grad_norm));
  EXPECT_FALSE(same_bits(t.weights_and_moments(), before));
  EXPECT_LT(result.loss, 1.5);
}

TEST(LossScale, GrowsAfterEnoughConsecutiveGoodSteps) {
  SmallGpt t({.precision = nn::Precision::f16,
              .loss_scale = optim::LossScale{.initial = 256, .growth = 4, .interval = 3}});
  std::vector<float> scales;
  for (int i = 0; i < 4; ++i) scales.push_back(t.step().loss_scale);
  EXPECT_EQ(scales, (std::vector<float>{256, 256, 1024, 1024}));
  t.state("loss_scale").write(Array::of<float>({}, {0x1p40f}));
  t.step();
  t.state("loss_scale").write(Array::of<float>({}, {256}));
  scales.clear();  // after the overflow, good steps are counted from 0
  for (int i = 0; i < 4; ++i) scales.push_back(t.step().loss_scale);
  EXPECT_EQ(scales, (std::vector<float>{256, 256, 1024, 1024}));
}

TEST(LossScale, CountsNonFiniteLossesSeparatelyAndStaysAtLeastOne) {
  SmallGpt t({.precision = nn::Precision::f16, .loss_scale = optim::LossScale{.initial = 4}});
  const Parameter& gain = *t.params.find("transformer.ln_f.weight");
  const Array good = gain.read();
  Parameter(gain).write(Array::of<float>({32}, std::vector<float>(32, std::nanf(""))));
  train::TrainingProgram::Result result{};
  for (int i = 0; i < 4; ++i) result = t.step();
  EXPECT_EQ(result.skipped, 4);
  EXPECT_EQ(result.overflowed, 0);
  EXPECT_EQ(result.loss_scale, 1);
  Parameter(gain).write(good);
  EXPECT_TRUE(std::isfinite(t.step().grad_norm));
}

TEST(LossScale, IsStateOfTheOptimizer) {
  const auto names = [](const SmallGpt& t) {
    std::vector<std::string> all;
    for (const Parameter& p : t.optimizer.state())
      if (p.shape().empty()) all.push_back(p.name());
    return all;
  };
  EXPECT_EQ(names(SmallGpt({.precision = nn::Precision::f16, .loss_scale = optim::LossScale{}})),
            (std::vector<std::string>{"optimizer.step", "optimizer.skipped", "optimizer.loss_scale",
                                      "optimizer.good_steps", "optimizer.overflowed"}));
  EXPECT_EQ(names(SmallGpt({.precision = nn::Precision::bf16})),
            (std::vector<std::string>{"optimizer.step", "optimizer.skipped"}));
}

}  // namespace
