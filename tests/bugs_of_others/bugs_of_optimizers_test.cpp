// Runs the examples of bug reports about optimizers: AdamW, SGD, clipping, skipped steps, loss scales and
// schedules.
#include <limits>

#include <tilegrad/nn/optimizers/optimizers.h>
#include "tests/support/op_testing.h"

namespace {

using namespace tg;
using namespace tg::testing;

constexpr double inf = std::numeric_limits<double>::infinity(),
                 nan = std::numeric_limits<double>::quiet_NaN();

// Trains a matrix [1, 2] and a gain [2] with the loss Σ w ⊛ c. The gradient is c, which is an input.
template <class Optimizer>
struct Slope {
  nn::Params params{1, f64};
  Parameter matrix = params.create("matrix", {1, 2}, nn::Init::ones());
  Parameter gain = params.create("gain", {2}, nn::Init::ones());
  Graph graph;
  Tensor c_matrix = graph.input("c_matrix", {1, 2}, f64), c_gain = graph.input("c_gain", {2}, f64);
  Optimizer optimizer;
  optim::Optimizer::Update update;
  Program program;

  explicit Slope(const typename Optimizer::Options& options)
      : optimizer(params.all(), options),
        update(optimizer.minimize(sum(graph.param(matrix) * c_matrix) + sum(graph.param(gain) * c_gain))),
        program(compile(graph, results(), {.assign = update.assign, .threads = 1})) {}

  std::vector<Tensor> results() const {
    std::vector<Tensor> all{update.grad_norm, update.skipped};
    if (update.loss_scale.defined()) all.push_back(update.loss_scale);
    return all;
  }
  void step(const Vector& z_matrix, const Vector& z_gain, float rate) {
    program.run({{c_matrix, z_matrix}, {c_gain, z_gain}, {update.learning_rate, std::vector<float>{rate}}});
  }
  Vector weights() const {
    Vector all = doubles(matrix.read());
    for (const double w : doubles(gain.read())) all.push_back(w);
    return all;
  }
  double state(const std::string& name, std::int64_t at = 0) const {
    for (const Parameter& p : optimizer.state())
      if (p.name() == "optimizer." + name) return p.read().at(at);
    throw Error("there is no " + name);
  }
};
using Adam = Slope<optim::AdamW>;
using Descent = Slope<optim::Sgd>;

// https://github.com/huggingface/transformers/issues/14539
// https://github.com/bitsandbytes-foundation/bitsandbytes/issues/2010
// Weight decay was applied after the update. It must be computed from the weight before the step.
TEST(BugsOfOthersOptimizers, DecayUsesTheWeightBeforeTheStep) {
  Adam s({.eps = 1e-30, .weight_decay = 0.5, .clip = 0});
  s.step({1, -2}, {0, 0}, 0.25f);
  EXPECT_TRUE(close(s.weights(), {1 - 0.25 * 0.5 - 0.25, 1 - 0.25 * 0.5 + 0.25, 1, 1}, 1e-12));
}

// https://github.com/tensorflow/tensorflow/issues/9047
// https://github.com/pytorch/pytorch/pull/22628
// https://github.com/karpathy/nanochat/issues/304
// eps was scaled by the bias correction of the second moment. It must be added to the corrected square root.
TEST(BugsOfOthersOptimizers, EpsIsAddedToTheCorrectedRoot) {
  Adam s({.beta2 = 0.999, .eps = 0.5, .weight_decay = 0, .clip = 0});
  s.step({1, 3}, {0, 0}, 0.25f);
  EXPECT_TRUE(close(s.weights(), {1 - 0.25 / 1.5, 1 - 0.25 * 3 / 3.5, 1, 1}, 1e-12));
}

// https://github.com/d2l-ai/d2l-zh/pull/502
// eps was added inside the square root.
TEST(BugsOfOthersOptimizers, EpsIsAddedOutsideTheRoot) {
  Adam s({.beta2 = 0.999, .eps = 0.01, .weight_decay = 0, .clip = 0});
  s.step({0.01, 0.01}, {0, 0}, 1.0f);
  EXPECT_TRUE(close(s.weights(), {0.5, 0.5, 1, 1}, 1e-6));
}

// https://github.com/kozistr/pytorch_optimizer/issues/480
// https://github.com/NVIDIA/apex/pull/799
// A gradient of zeros gave NaN. The weight must not change.
TEST(BugsOfOthersOptimizers, ZeroGradientsLeaveWeights) {
  Adam s({.weight_decay = 0});
  s.step({0, 0}, {0, 0}, 0.1f);
  EXPECT_EQ(s.weights(), (Vector{1, 1, 1, 1}));
}

// https://github.com/eriklindernoren/ML-From-Scratch/issues/35
// Moments were corrected by β instead of βᵗ. If the gradient is constant, the length of each step is the
// learning rate.
TEST(BugsOfOthersOptimizers, MomentsAreCorrectedByThePowerOfTheStep) {
  Adam s({.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-30, .weight_decay = 0, .clip = 0});
  for (int t = 1; t <= 5; ++t) {
    s.step({2, -3}, {0.5, 1}, 0.125f);
    EXPECT_TRUE(close(s.weights(), {1 - t / 8.0, 1 + t / 8.0, 1 - t / 8.0, 1 - t / 8.0}, 1e-9)) << t;
  }
}

// https://github.com/tensorflow/addons/issues/2282
// https://github.com/pytorch/pytorch/pull/4429
// Decoupled weight decay did not depend on the learning rate. It must subtract rate·decay·w.
TEST(BugsOfOthersOptimizers, DecayFollowsTheRate) {
  Adam s({.weight_decay = 0.5});
  s.step({0, 0}, {0, 0}, 0.125f);
  EXPECT_NEAR(s.weights()[0], 1 - 0.125 * 0.5, 1e-12);
  s.step({0, 0}, {0, 0}, 0);
  EXPECT_NEAR(s.weights()[0], 1 - 0.125 * 0.5, 1e-12);
}

// https://github.com/Lightning-AI/lit-llama/issues/254
// https://github.com/CyberZHG/keras-bert/issues/60
// https://github.com/oumi-ai/oumi/pull/341
// Gains of norms and biases had weight decay. Only matrices must have it.
TEST(BugsOfOthersOptimizers, GainsAndBiasesDoNotDecay) {
  Adam s({.weight_decay = 0.5});
  s.step({0, 0}, {0, 0}, 0.25f);
  const Vector w = s.weights();
  EXPECT_EQ(Vector(w.begin() + 2, w.end()), (Vector{1, 1}));
  EXPECT_LT(w[0], 1);
}

// https://github.com/ml-explore/mlx/pull/473
// SGD without momentum had no weight decay.
TEST(BugsOfOthersOptimizers, SgdWithoutMomentumDecays) {
  Descent s({.momentum = 0, .weight_decay = 0.5, .clip = 0});
  s.step({1, 2}, {0, 0}, 0.25f);
  EXPECT_TRUE(close(s.weights(), {1 - 0.25 * 1.5, 1 - 0.25 * 2.5, 1, 1}));
}

// https://github.com/torch/optim/issues/27
// https://github.com/ml-explore/mlx/pull/87
// Nesterov momentum was plain momentum. The step must be z + μ·b, after b ← μ·b + z.
TEST(BugsOfOthersOptimizers, NesterovLooksAhead) {
  Descent s({.momentum = 0.5, .nesterov = true, .weight_decay = 0, .clip = 0});
  s.step({1, 2}, {0, 0}, 0.25f);  // b = z
  EXPECT_TRUE(close(s.weights(), {1 - 0.25 * 1.5, 1 - 0.25 * 3, 1, 1}));
  s.step({1, 2}, {0, 0}, 0.25f);  // b = 1.5 z
  EXPECT_TRUE(close(s.weights(), {1 - 0.25 * (1.5 + 1.75), 1 - 0.25 * (3 + 3.5), 1, 1}));
}

// https://github.com/k2-fsa/icefall/issues/2081
// https://github.com/ml-explore/mlx-lm/issues/1658
// One NaN in a gradient made the moments NaN. All later weights became NaN, too. Such a step must change
// nothing.
TEST(BugsOfOthersOptimizers, StepWithNanKeepsWeightsAndMoments) {
  Adam s({.weight_decay = 0}), other({.weight_decay = 0});
  s.step({1, 2}, {3, 4}, 0.1f), other.step({1, 2}, {3, 4}, 0.1f);
  s.step({1, nan}, {3, 4}, 0.1f);
  EXPECT_EQ(s.weights(), other.weights());
  EXPECT_EQ(s.state("m.matrix", 1), other.state("m.matrix", 1));
  EXPECT_EQ(s.state("v.gain"), other.state("v.gain"));
}

// https://github.com/allenai/OLMo-core/pull/309
// The bias correction counted a skipped step. A skipped step must not affect the next step.
TEST(BugsOfOthersOptimizers, SkippedStepIsNotCounted) {
  Adam s({.weight_decay = 0}), other({.weight_decay = 0});
  s.step({1, 2}, {3, inf}, 0.1f);
  EXPECT_EQ(s.state("step"), 0);
  s.step({1, 2}, {3, 4}, 0.1f), other.step({1, 2}, {3, 4}, 0.1f);
  EXPECT_EQ(s.weights(), other.weights());
}

// https://github.com/pytorch/pytorch/issues/40907
// The norm of large finite gradients was infinite, because their squares overflow. After clipping, the
// gradient must have norm 1.
TEST(BugsOfOthersOptimizers, HugeFiniteGradientsAreClipped) {
  Graph g;
  const Tensor x = g.constant(Array::of({2}, std::vector<float>{3e25f, 4e25f}));
  EXPECT_FLOAT_EQ(eval(global_norm({x})).item<float>(), 5e25f);
  Descent s({.momentum = 0, .weight_decay = 0, .clip = 1});
  s.step({3e25, 0}, {0, 4e25}, 0.5f);
  EXPECT_TRUE(close(s.weights(), {1 - 0.3, 1, 1, 1 - 0.4}, 1e-6));
}

// https://github.com/facebookresearch/fairscale/pull/263
// https://github.com/tracel-ai/burn/issues/5699
// The norm of 16-bit gradients overflowed. The norm must be computed and returned in f32.
TEST(BugsOfOthersOptimizers, NormOfSixteenBitGradientsIsF32) {
  Graph g;
  const Tensor norm = global_norm({g.constant(Array::of({4}, Vector{300, 300, 300, 300}).to(f16))});
  EXPECT_EQ(norm.dtype(), f32);
  EXPECT_FLOAT_EQ(eval(norm).item<float>(), 600);
}

// https://github.com/pytorch/pytorch/issues/46849
// https://github.com/deepspeedai/DeepSpeed/pull/7171
// Clipping by an infinite norm set gradients to 0 and NaN without an error. The step must be skipped and
// counted as skipped.
TEST(BugsOfOthersOptimizers, InfiniteNormSkipsTheStep) {
  Descent s({.momentum = 0, .weight_decay = 0, .clip = 1});
  s.step({inf, 1}, {1, 1}, 0.5f);
  EXPECT_EQ(s.weights(), (Vector{1, 1, 1, 1}));
  EXPECT_EQ(s.program.item<float>(s.update.skipped), 1);
}

// https://github.com/pytorch/pytorch/issues/31367
// A negative maximum norm negated gradients. Such a norm must be rejected.
TEST(BugsOfOthersOptimizers, NegativeClipIsRejected) {
  nn::Params params;
  params.create("w", {2}, nn::Init::ones());
  expect_error<Error>([&] { optim::AdamW(params.all(), {.clip = -1}); }, {"clip", "-1"});
}

// https://github.com/OpenNMT/OpenNMT-py/issues/1140
// A maximum norm of 0 made all gradients 0. This setting must disable clipping.
TEST(BugsOfOthersOptimizers, ClipOfZeroDisablesClipping) {
  Descent s({.momentum = 0, .weight_decay = 0, .clip = 0});
  s.step({30, 40}, {0, 0}, 0.5f);
  EXPECT_EQ(s.weights(), (Vector{1 - 15, 1 - 20, 1, 1}));
}

// https://github.com/rwth-i6/returnn/pull/1595
// https://github.com/TorchSSL/TorchSSL/pull/59
// https://github.com/Deci-AI/super-gradients/pull/653
// Gradients were clipped while they still contained the loss scale, so steps were far too short. The norm
// must be computed for the unscaled loss.
TEST(BugsOfOthersOptimizers, ClippingUsesUnscaledGradients) {
  Descent s({.momentum = 0, .weight_decay = 0, .clip = 1, .loss_scale = optim::LossScale{.initial = 1024}});
  s.step({0.3, 0.4}, {0, 0}, 0.5f);
  EXPECT_FLOAT_EQ(s.program.item<float>(s.update.grad_norm), 0.5f);
  EXPECT_TRUE(close(s.weights(), {1 - 0.15, 1 - 0.2, 1, 1}, 1e-7));
}

// https://github.com/Haian-Jin/LVSM/pull/19
// After an overflow, the loss scale did not change, so the overflow persisted. The scale must be reduced.
TEST(BugsOfOthersOptimizers, OverflowLowersTheLossScale) {
  Descent s({.momentum = 0, .clip = 0, .loss_scale = optim::LossScale{.initial = 1024}});
  s.step({inf, 0}, {0, 0}, 0.5f);
  EXPECT_EQ(s.program.item<float>(s.update.loss_scale), 512);
}

// https://github.com/google-research/bert/issues/1293
// https://github.com/pytorch/torchtitan/pull/1261
// https://github.com/HomebrewML/HeavyBall/issues/29
// The first learning rate of a warmup was 0, so the first step did nothing.
TEST(BugsOfOthersOptimizers, FirstRateOfAWarmupIsNotZero) {
  const optim::Schedule rate{.peak = 1, .floor = 0, .warmup = 4, .steps = 100};
  for (int t = 0; t < 4; ++t) EXPECT_DOUBLE_EQ(rate(t), (t + 1) / 5.0);
  EXPECT_DOUBLE_EQ(rate(4), 1);
}

// https://github.com/EleutherAI/gpt-neox/pull/1008
// A cosine schedule decayed to 0 regardless of its floor.
TEST(BugsOfOthersOptimizers, CosineFallsToItsFloor) {
  const optim::Schedule rate{.peak = 1, .floor = 0.2, .warmup = 0, .steps = 100};
  EXPECT_NEAR(rate(50), 0.6, 1e-12);
  EXPECT_NEAR(rate(99), 0.2 + 0.8 * 0.5 * (1 + std::cos(3.14159265358979 * 0.99)), 1e-12);
}

// https://github.com/pytorch/pytorch/issues/20086
// https://github.com/pytorch/pytorch/issues/91765
// https://github.com/pytorch/pytorch/issues/60265
// After the last step of a cosine schedule, the learning rate rose again. It must stay at the floor.
TEST(BugsOfOthersOptimizers, RateStaysAtTheFloorAfterTheEnd) {
  const optim::Schedule rate{.peak = 1, .floor = 0.2, .warmup = 0, .steps = 100};
  for (const int t : {100, 101, 150, 200, 1000}) EXPECT_EQ(rate(t), 0.2) << t;
}

}  // namespace
