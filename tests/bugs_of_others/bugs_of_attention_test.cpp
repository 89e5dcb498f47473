// Runs the examples of bug reports about attention: gradients, head groups, sinks, caps, dropout, scales and
// large scores.
#include <tilegrad/nn/layers/attention.h>
#include "tests/support/attention_case.h"
#include "tests/support/paged_problem.h"
#include "tests/support/small_gpt.h"

namespace {

using namespace tg;
using namespace tg::testing;

// https://github.com/pytorch/pytorch/issues/125674
// https://github.com/pytorch/pytorch/issues/119320
// Large scores made gradients wrong, because weights were recomputed from a rounded logarithm. Five equal
// scores of 1e7 must have weights 1/5, also in the backward pass.
TEST(BugsOfOthersAttention, LargeEqualScoresShareTheGradient) {
  AttentionCase c({1, 1, 1, 1, 5, 1, 1}, {.scale = 1}, f32);
  c.q = {1e4}, c.k = Vector(5, 1e3), c.v = {1, 2, 3, 4, 5}, c.z_o = {1};
  const Attended got = c.run();
  EXPECT_NEAR(got.o[0], 3, 1e-6);
  for (const double z : got.z_v) EXPECT_NEAR(z, 0.2, 1e-6);
}

// https://github.com/marin-community/levanter/pull/449
// Several query heads can share a key head. The gradient of a key must then be the sum over all these query
// heads.
TEST(BugsOfOthersAttention, KeyGradientsSumOverTheGroup) {
  expect_oracle(AttentionCase({1, 6, 2, 5, 7, 4, 3}));
}

// https://github.com/apple/axlearn/pull/842
// The order in which query heads were paired with key heads did not match the weights. Query head h must read
// key head h / (H / Hk), so neighboring query heads share a key head.
TEST(BugsOfOthersAttention, NeighbouringHeadsShareAKeyHead) {
  AttentionCase c({1, 4, 2, 9, 3, 2, 1});
  c.v = {1, 1, 1, 2, 2, 2};  // all values of key head 0 are 1, and all values of key head 1 are 2
  const Attended got = c.run();
  for (std::size_t h = 0; h < 4; ++h)
    for (std::size_t i = 0; i < 9; ++i) EXPECT_NEAR(got.o[h * 9 + i], h < 2 ? 1 : 2, 1e-14) << h;
}

// https://github.com/FlashML-org/FreeToken/pull/177
// A paged kernel matched rows of a group to the wrong head, except in its first block.
TEST(BugsOfOthersAttention, RowsOfALargeGroupKeepTheirHeads) {
  expect_defined(PagedCall{.H = 3, .Hk = 1, .L = 25, .sequences = {0}, .lengths = {30}});
}

// https://github.com/Dao-AILab/flash-attention/pull/1033
// https://github.com/openxla/tokamax/pull/1121
// The gradient ignored the cap on scores. The cap adds the factor 1 − tanh².
TEST(BugsOfOthersAttention, CapOnScoresIsInTheGradient) {
  AttentionCase c({1, 2, 2, 6, 9, 4, 4}, {.softcap = 0.7});
  for (double& e : c.q) e *= 3;
  expect_oracle(c);
}

// https://github.com/facebookresearch/xformers/issues/854
// The gradient of a bias that is broadcast over the batch was the gradient of one entry. It must be the sum
// over all entries.
TEST(BugsOfOthersAttention, BroadcastBiasHasTheSumOfGradients) {
  expect_oracle(AttentionCase({3, 2, 2, 4, 5, 4, 4},
                              {.bias = random_vector(2 * 4 * 5, 9), .bias_shape = {1, 2, 4, 5}}));
}

// https://github.com/HKUSTDial/flash-sparse-attention/pull/193
// The gradient of a bias that is broadcast over query rows must be summed over these rows.
TEST(BugsOfOthersAttention, BiasOfKeysHasTheSumOverRows) {
  expect_oracle(
      AttentionCase({2, 1, 1, 100, 5, 2, 2}, {.bias = random_vector(2 * 5, 9), .bias_shape = {2, 1, 1, 5}}));
}

// https://github.com/Dao-AILab/flash-attention/issues/889
// If a loss used ξ, the logarithm of the sum, no gradient flowed through ξ. The correct ∂ξ/∂A is the row of
// weights.
TEST(BugsOfOthersAttention, LogarithmOfTheSumHasAGradient) {
  AttentionCase c({1, 2, 2, 6, 7, 4, 4});
  c.z_lse = random_vector(12, 8);
  c.z_o.assign(c.z_o.size(), 0.0);
  expect_oracle(c);
}

// https://github.com/NVIDIA/TransformerEngine/pull/3551
// A learned sink had no gradient. The correct gradient is −Σ exp(sink − ξ)·u over the rows of the sink's
// head.
TEST(BugsOfOthersAttention, SinkHasAGradient) {
  expect_oracle(AttentionCase({2, 2, 1, 5, 6, 4, 4}, {.causal = true, .sink = {0.3, -0.4}}));
}

// https://github.com/vllm-project/vllm-metal/pull/550
// A paged kernel omitted sinks from the denominator.
TEST(BugsOfOthersAttention, PagedAttentionHasTheSinkInItsDenominator) {
  PagedCall c{.L = 2, .sequences = {0, 1}, .lengths = {9, 20}};
  c.sink = true;
  expect_defined(c);
}

nn::ModelConfig dropping(double dropout) {
  return {.vocabulary = 13, .context = 8, .layers = 1, .heads = 2, .width = 16, .dropout = dropout};
}

// https://github.com/pytorch/pytorch/issues/124464
// https://github.com/karpathy/nanoGPT/pull/240
// Fused attention applied dropout also in evaluation. Dropout must apply only in training.
TEST(BugsOfOthersAttention, EvaluationDropsNothing) {
  Vector logits[2];
  for (const int drops : {0, 1}) {
    nn::Params params(3);
    const nn::GroupedAttention attention(nn::Path(params) / "attn", 16, 2, {.dropout = drops ? 0.5 : 0.0});
    Graph g;
    const Given x = given(g, {1, 12, 16}, f32);
    logits[drops] = doubles(eval(attention(x.tensor, {.mode = nn::Mode::evaluate}), {x.feed()}));
  }
  EXPECT_EQ(logits[0], logits[1]);
}

// https://github.com/microsoft/onnxruntime/pull/19715
// The backward pass of attention drew a different dropout mask from the forward pass. If the values are the
// identity, the output contains the kept weights. For z_o = 1, z_v contains them, too.
TEST(BugsOfOthersAttention, DropoutMaskIsTheSameInForwardAndBackward) {
  Graph g;
  const std::int64_t T = 13;
  const Tensor q = g.constant(Array::of({1, 1, 1, 2}, Vector{0.0, 0.0}));
  const Tensor k = g.constant(Array::of({1, 1, T, 2}, Vector(2 * T, 0.0)));
  Array one_hot({1, 1, T, T}, f64);  // o is then the row of weights
  for (std::int64_t t = 0; t < T; ++t) one_hot.set(t * T + t, 1);
  const Tensor v = g.constant(one_hot);
  const Tensor o = flash_attn(q, k, v, {.dropout = 0.5}).o;
  const auto got = eval({o, gradients(sum(o), {v})[0]}, {}, {.threads = 1});
  const Vector weights = doubles(got[0]), z_v = doubles(got[1]);
  int kept = 0;
  for (std::size_t t = 0; t < 13; ++t) {
    EXPECT_NEAR(z_v[t * 13], weights[t], 1e-15) << t;
    kept += weights[t] != 0;
  }
  EXPECT_GT(kept, 0);
  EXPECT_LT(kept, 13);
}

// https://github.com/PaddlePaddle/Paddle/pull/21298
// If the backward pass recomputes the forward pass, it must draw the same dropout masks. Otherwise gradients
// belong to a different function.
TEST(BugsOfOthersAttention, BlocksRunAgainDropTheSame) {
  Vector after[2];
  for (const bool recompute : {false, true}) {
    nn::Params params(1);
    const nn::Model model(params, dropping(0.4));
    const optim::AdamW optimizer(params.all());
    train::TrainingProgram training(model, optimizer, {.batch = 2, .threads = 1, .recompute = recompute}, 7);
    std::vector<std::int32_t> x, y;
    for (std::int32_t i = 0; i < 16; ++i) x.push_back(i % 13), y.push_back((i + 1) % 13);
    training.run(x, y, 1e-2);
    for (const Parameter& p : params.all())
      for (const double e : doubles(p.read())) after[recompute].push_back(e);
  }
  EXPECT_TRUE(close(after[1], after[0], 1e-6));
}

// https://github.com/ollama/ollama/pull/13893
// https://github.com/NVIDIA/Megatron-LM/issues/1501
// Latent attention was scaled by the width of the latent. The right width is that of a key, head_width +
// rope_width.
TEST(BugsOfOthersAttention, LatentAttentionIsScaledByTheWidthOfAKey) {
  nn::Params params(1, f64);
  const nn::LatentAttention attention(nn::Path(params) / "attn", 4, 1,
                                      {.latent = 3, .rope_width = 2, .head_width = 6, .value_width = 2});
  Graph g;
  const Given x = given(g, {1, 2, 4});
  const Tensor y = attention(x.tensor, {.mode = nn::Mode::evaluate});
  for (const Node& node : y.graph().nodes())
    if (node.op->name == "flash_attn") {
      EXPECT_DOUBLE_EQ(node.attrs.as<AttentionAttrs>().scale, 1 / std::sqrt(8.0));
      return;
    }
  FAIL() << "there is no attention";
}

// https://github.com/AI-Hypercomputer/maxtext/issues/1370
// Scores were multiplied by √d instead of being divided by √d. Here d is 4, and the two products q·k are 4
// and 0. The correct weights are proportional to e² and 1.
TEST(BugsOfOthersAttention, ScoresAreDividedByTheRootOfTheWidth) {
  AttentionCase c({1, 1, 1, 1, 2, 4, 1});
  c.q = {1, 1, 1, 1}, c.k = {1, 1, 1, 1, 0, 0, 0, 0}, c.v = {1, 0};
  EXPECT_NEAR(c.run().o[0], std::exp(2.0) / (std::exp(2.0) + 1), 1e-14);
}

}  // namespace
