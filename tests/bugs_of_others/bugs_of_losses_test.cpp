// Runs the examples of bug reports about losses and their normalization, gradient accumulation and tied
// weights.
#include <limits>

#include <tilegrad/nn/optimizers/optimizers.h>
#include "tests/support/op_testing.h"
#include "tests/support/small_gpt.h"

namespace {

using namespace tg;
using namespace tg::testing;

constexpr double inf = std::numeric_limits<double>::infinity();

Tensor classes(Graph& g, const std::vector<std::int32_t>& t) {
  return g.constant(Array::of(t));
}

// Computes −log softmax(x)[t], smoothed by ε, in double.
double loss_of_row(const Vector& x, std::size_t t, double smoothing = 0) {
  double sum = 0, mean = 0;
  for (const double e : x) sum += std::exp(e), mean += e / static_cast<double>(x.size());
  return std::log(sum) - (1 - smoothing) * x[t] - smoothing * mean;
}

// https://github.com/pytorch/pytorch/issues/70348
// https://github.com/pytorch/pytorch/issues/116349
// The mean over no targets was NaN. The mean and its gradients must be 0.
TEST(BugsOfOthersLosses, MeanOverNoTargetsIsZero) {
  Graph g;
  const Tensor x = g.input("x", {2, 3}, f32), loss = cross_entropy(x, classes(g, {-100, -100}));
  const auto got =
      eval({loss, gradients(loss, {x})[0]}, {{x, Array::of({2, 3}, Vector{1, 2, 3, 4, 5, 6}).to(f32)}});
  EXPECT_EQ(doubles(got[0]), (Vector{0}));
  EXPECT_EQ(doubles(got[1]), Vector(6, 0.0));
}

// https://github.com/pytorch/pytorch/issues/72056
// https://github.com/pytorch/pytorch/issues/91383
// With label smoothing, the mean also included ignored rows.
TEST(BugsOfOthersLosses, SmoothedMeanExcludesIgnoredRows) {
  Graph g;
  const Vector rows = random_vector(12, 3);
  const Tensor x = g.constant(Array::of({3, 4}, rows));
  const double loss = eval(cross_entropy(x, classes(g, {2, -100, 1}), {.label_smoothing = 0.2})).at(0);
  const Vector first(rows.begin(), rows.begin() + 4), last(rows.begin() + 8, rows.end());
  EXPECT_NEAR(loss, (loss_of_row(first, 2, 0.2) + loss_of_row(last, 1, 0.2)) / 2, 1e-12);
}

// https://github.com/pytorch/pytorch/issues/73205
// With label smoothing, ignored rows had a gradient.
TEST(BugsOfOthersLosses, IgnoredRowsHaveNoGradientWithSmoothing) {
  Graph g;
  const Tensor x = g.input("x", {2, 3}, f64),
               loss = cross_entropy(x, classes(g, {1, -100}), {.label_smoothing = 0.3});
  const Vector z = doubles(eval(gradients(loss, {x})[0], {{x, Array::of({2, 3}, Vector{1, 2, 3, 4, 5, 6})}}));
  EXPECT_EQ(Vector(z.begin() + 3, z.end()), (Vector{0, 0, 0}));
  EXPECT_NE(z[0], 0);
}

// https://github.com/pytorch/pytorch/issues/12670
// A negative target caused a read before the row. One negative value marks ignored rows. All other negative
// targets must cause an error.
TEST(BugsOfOthersLosses, OtherNegativeTargetsAreErrors) {
  Graph g;
  const Tensor loss = cross_entropy(g.constant(Array::of({1, 3}, Vector{1, 2, 3})), classes(g, {-1}));
  EXPECT_THROW(eval(loss), Error);
}

// https://github.com/Dao-AILab/flash-attention/issues/1930
// Logits of −∞, for example of masked classes, made the loss NaN. Such classes have probability 0. The loss
// must be finite even if all classes of one part of the row are masked.
TEST(BugsOfOthersLosses, LogitsOfMinusInfinityHaveZeroProbability) {
  Graph g;
  Vector x(2000, 0.0);
  std::fill_n(x.begin(), 1500, -inf);
  const Tensor logits = g.input("x", {1, 2000}, f32), loss = cross_entropy(logits, classes(g, {1999}));
  const auto got = eval({loss, gradients(loss, {logits})[0]}, {{logits, Array::of({1, 2000}, x).to(f32)}});
  EXPECT_NEAR(got[0].at(0), std::log(500.0), 1e-5);
  EXPECT_EQ(got[1].at(0), 0);
  EXPECT_NEAR(got[1].at(1998), 1 / 500.0, 1e-8);
}

// https://github.com/NVIDIA/TransformerEngine/issues/2734
// Transposed logits were read as if their rows were contiguous.
TEST(BugsOfOthersLosses, TransposedLogitsAreReadByTheirStrides) {
  Graph g;
  const Vector x = random_vector(3 * 5, 4);  // [classes, rows]
  const Tensor logits = transpose(g.input("x", {3, 5}, f64), 0, 1);
  const Tensor loss = cross_entropy(logits, classes(g, {0, 1, 2, 1, 0}), {.reduction = Reduction::none});
  const Vector got = doubles(eval(loss, {{g.tensor(0), Array::of({3, 5}, x)}}));
  const std::size_t targets[] = {0, 1, 2, 1, 0};
  for (std::size_t r = 0; r < 5; ++r)
    EXPECT_NEAR(got[r], loss_of_row({x[r], x[5 + r], x[10 + r]}, targets[r]), 1e-12) << r;
}

struct Head {
  Graph g;
  Vector x = random_vector(3 * 2, 5), w = random_vector(2 * 4, 6);
  Tensor tx = g.input("x", {3, 2}, f64), tw = g.input("w", {2, 4}, f64);
  std::vector<Feed> feeds() { return {{tx, Array::of({3, 2}, x)}, {tw, Array::of({2, 4}, w)}}; }
  Vector logits(std::size_t r) const {
    Vector all;
    for (std::size_t c = 0; c < 4; ++c) all.push_back(x[2 * r] * w[c] + x[2 * r + 1] * w[4 + c]);
    return all;
  }
};

// https://github.com/linkedin/Liger-Kernel/issues/488
// Without a reduction, the fused head must return the loss of each row. It returned their mean.
TEST(BugsOfOthersLosses, FusedHeadReturnsTheLossOfEachRow) {
  Head h;
  const Tensor loss =
      linear_cross_entropy(h.tx, h.tw, classes(h.g, {3, 0, 1}), {.reduction = Reduction::none});
  ASSERT_EQ(loss.shape(), (Shape{3}));
  const Vector got = doubles(eval(loss, h.feeds()));
  const std::size_t targets[] = {3, 0, 1};
  for (std::size_t r = 0; r < 3; ++r) EXPECT_NEAR(got[r], loss_of_row(h.logits(r), targets[r]), 1e-12);
}

// https://github.com/linkedin/Liger-Kernel/issues/968
// https://github.com/linkedin/Liger-Kernel/pull/1298
// If the loss of each row was multiplied by a weight, the gradient lacked this weight.
TEST(BugsOfOthersLosses, FusedHeadAcceptsAGradientPerRow) {
  Head h;
  const Tensor weights = h.g.constant(Array::of(Vector{2, 0, -1}));
  const Tensor rows =
      linear_cross_entropy(h.tx, h.tw, classes(h.g, {3, 0, 1}), {.reduction = Reduction::none});
  const Vector z = doubles(eval(gradients(sum(rows * weights), {h.tx})[0], h.feeds()));
  const std::size_t targets[] = {3, 0, 1};
  const double weight[] = {2, 0, -1};
  for (std::size_t r = 0; r < 3; ++r) {
    const Vector logits = h.logits(r);
    double sum = 0;
    for (const double e : logits) sum += std::exp(e);
    for (std::size_t k = 0; k < 2; ++k) {
      double expected = 0;
      for (std::size_t c = 0; c < 4; ++c)
        expected += weight[r] * (std::exp(logits[c]) / sum - (c == targets[r])) * h.w[4 * k + c];
      EXPECT_NEAR(z[2 * r + k], expected, 1e-12) << r << " " << k;
    }
  }
}

// ---- steps of several batches ----

nn::ModelConfig tiny() {
  return {.vocabulary = 7, .context = 6, .layers = 1, .heads = 2, .width = 8, .std = 0.5};
}

struct Trained {
  double loss, norm;
  Vector weights;
};
// Runs one step of SGD on four rows of tokens, in `parts` batches.
Trained step_in(std::int64_t parts, const std::vector<std::int32_t>& targets, double clip = 0) {
  nn::Params params(2);
  const nn::Model model(params, tiny());
  const optim::Sgd optimizer(params.all(), {.momentum = 0, .clip = clip});
  train::TrainingProgram training(model, optimizer, {.batch = 4 / parts, .threads = 1, .accumulate = parts});
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 24; ++i) tokens.push_back(i * i % 7);
  const auto result = training.run(tokens, targets, 1);
  Trained t{result.loss, result.grad_norm, {}};
  for (const Parameter& p : params.all())
    for (const double w : doubles(p.read())) t.weights.push_back(w);
  return t;
}
std::vector<std::int32_t> even_targets() {
  std::vector<std::int32_t> t;
  for (std::int32_t i = 0; i < 24; ++i) t.push_back((i * i + 2 * i) % 7);
  return t;
}
// The first two rows keep all targets, the third keeps one, and the last none.
std::vector<std::int32_t> uneven_targets() {
  std::vector<std::int32_t> t = even_targets();
  std::fill(t.begin() + 13, t.end(), -100);
  return t;
}
void expect_close(const Trained& a, const Trained& b) {
  EXPECT_NEAR(a.loss, b.loss, 1e-5);
  EXPECT_NEAR(a.norm, b.norm, 1e-4);
  EXPECT_TRUE(close(a.weights, b.weights, 1e-5));
}

// https://github.com/huggingface/blog/pull/2414
// https://github.com/huggingface/transformers/issues/35203
// https://github.com/karpathy/nanochat/pull/59
// The loss was the mean of the means of the batches. This is wrong if batches have different numbers of
// targets: it must be the mean over all targets.
TEST(BugsOfOthersLosses, AccumulatedStepIsTheMeanOverAllTargets) {
  expect_close(step_in(4, uneven_targets()), step_in(1, uneven_targets()));
}

// https://github.com/ml-explore/mlx-lm/pull/1413
// https://github.com/pytorch/torchtune/pull/1875
// In a step with several batches, the weight of each batch must be its number of targets. A batch without
// targets must change nothing.
TEST(BugsOfOthersLosses, BatchesWithoutTargetsDoNotCount) {
  std::vector<std::int32_t> t = even_targets();
  std::fill(t.begin() + 6, t.end(), -100);
  expect_close(step_in(4, t), step_in(1, t));
}

// https://github.com/karpathy/nanoGPT/issues/206
// https://github.com/karpathy/nanoGPT/issues/168
// Gradients of several batches were summed instead of averaged.
TEST(BugsOfOthersLosses, AccumulatedGradientsAreAveraged) {
  const Trained many = step_in(4, even_targets()), one = step_in(1, even_targets());
  EXPECT_NEAR(many.norm, one.norm, 1e-4);
  EXPECT_TRUE(close(many.weights, one.weights, 1e-5));
}

// https://github.com/unslothai/unsloth-zoo/pull/1023
// Losses were divided by the number of batches twice.
TEST(BugsOfOthersLosses, AccumulatedLossesAreDividedOnce) {
  const Trained many = step_in(2, even_targets()), one = step_in(1, even_targets());
  EXPECT_NEAR(many.loss, one.loss, 1e-5);
  EXPECT_NEAR(many.norm, one.norm, 1e-4);
}

// https://github.com/karpathy/nanochat/pull/515
// The reported loss of a step was the loss of its last batch. It must be the loss of all batches.
TEST(BugsOfOthersLosses, ReportedLossCoversAllBatches) {
  EXPECT_NEAR(step_in(4, even_targets()).loss, step_in(1, even_targets()).loss, 1e-5);
}

// https://github.com/huggingface/accelerate/issues/641
// https://github.com/facebookresearch/lingua/pull/59
// The gradient of each batch was clipped. Only the gradient of the complete step must be clipped.
TEST(BugsOfOthersLosses, StepIsClippedOnceAfterAccumulation) {
  expect_close(step_in(4, even_targets(), 0.25), step_in(1, even_targets(), 0.25));
}

// ---- tied weights ----

// https://github.com/paiml/entrenar/issues/314
// A tied table is used as embedding and as head. Its gradient was the gradient of only one of these uses. The
// gradients of both uses must be added.
TEST(BugsOfOthersLosses, TiedTableHasTheGradientOfBothUses) {
  nn::Params params(1, f64);
  const nn::Embedding table(nn::Path(params) / "table", 3, 2, nn::Init::normal(1));
  const nn::Layer head = table.head();
  Graph g;
  const Tensor ids = classes(g, {0, 1});
  const Tensor logits = head(table(ids, {}), {});  // [2, 3]: x·xᵀ
  const Parameter w = params.all()[0];
  const Vector x = doubles(w.read()), z = doubles(eval(gradients(sum(logits), {g.param(w)})[0]));
  // For L = Σ_{i<2, j<3} x_i·x_j, ∂L/∂x_k = Σ_{i<2} x_i, plus Σ_j x_j if k < 2.
  for (std::size_t k = 0; k < 3; ++k)
    for (std::size_t e = 0; e < 2; ++e)
      EXPECT_NEAR(z[2 * k + e], x[e] + x[2 + e] + (k < 2 ? x[e] + x[2 + e] + x[4 + e] : 0), 1e-14) << k;
}

// https://github.com/facebookresearch/lingua/issues/74
// https://github.com/ml-explore/mlx-lm/pull/373
// https://github.com/NVIDIA/Megatron-LM/issues/656
// A model with a tied head had a second table for the head. The two tables became different during training.
TEST(BugsOfOthersLosses, TiedHeadAddsNoParameters) {
  const auto numbers = [](bool tied) {
    nn::ModelConfig c = tiny();
    c.tied_head = tied;
    nn::Params params(1);
    const nn::Model model(params, c);
    std::int64_t n = 0;
    for (const Parameter& p : params.all()) n += numel(p.shape());
    return n;
  };
  EXPECT_EQ(numbers(false) - numbers(true), 7 * 8);
}

}  // namespace
