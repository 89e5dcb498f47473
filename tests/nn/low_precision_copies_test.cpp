// Tests low-precision copies of weights. Some steps use copies, and others cast the weights. Both must be
// bitwise identical, even if other code changes the weights between steps.
#include <gtest/gtest.h>

#include <tilegrad/nn/layers/autocast.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/tilegrad.h>
#include "tests/support/small_gpt.h"

namespace {

using namespace tg;
using namespace tg::testing;

// Runs training steps on the CPU in bf16, with this type of optimizer.
template <class Optimizer>
struct Training {
  nn::Params params{1, f32};
  nn::Model model{params, small_gpt()};
  Optimizer optimizer{params.all(), typename Optimizer::Options{}};
  std::int64_t accumulate;
  train::TrainingProgram program;

  explicit Training(bool low_precision_copies, std::int64_t accumulate = 1)
      : accumulate(accumulate),
        program(model, optimizer,
                {.batch = small_batch / accumulate,
                 .threads = 1,
                 .precision = nn::Precision::bf16,
                 .accumulate = accumulate,
                 .low_precision_copies = low_precision_copies}) {}
  void step(std::int64_t number) {
    const SmallBatch b(number);
    program.run(b.x, b.y, 1e-2);
  }
};

template <class T>
void expect_same_weights(const T& a, const T& b) {
  const std::vector<Parameter> as = a.params.all(), bs = b.params.all();
  for (std::size_t i = 0; i < as.size(); ++i)
    EXPECT_TRUE(as[i].read().same_bits(bs[i].read())) << as[i].name();
}

std::size_t casts_to_half(const Program& program) {
  return static_cast<std::size_t>(std::ranges::count_if(program.steps(), [](const Step& s) {
    return s.name.ends_with("/cast") && s.in.size() == 1 && s.in[0].dtype == f32 && s.out[0].dtype == bf16;
  }));
}

template <class Optimizer>
void expect_bits_of_casts(std::int64_t accumulate) {
  Training<Optimizer> with(true, accumulate), without(false, accumulate);
  EXPECT_EQ(casts_to_half(with.program.program()), 0u) << with.program.program().text();
  EXPECT_EQ(casts_to_half(without.program.program()), 10u);
  for (int i = 0; i < 4; ++i) with.step(i), without.step(i);
  expect_same_weights(with, without);
}

TEST(LowPrecisionCopies, MatchCastsBitwise) {
  for (const std::int64_t accumulate : {1, 2}) {
    expect_bits_of_casts<optim::AdamW>(accumulate);
    expect_bits_of_casts<optim::Sgd>(accumulate);
    expect_bits_of_casts<optim::Muon>(accumulate);
  }
}

// This optimizer does not support copies. It computes w' = w − rate·g.
class Descent final : public optim::Optimizer {
 public:
  struct Options {};
  Descent(const std::vector<Parameter>& params, Options) : Optimizer(params, 0, {}) {}

 private:
  std::vector<optim::NewWeight> append(const Step& step, std::vector<Assign>&) const override {
    std::vector<optim::NewWeight> news;
    for (std::size_t i = 0; i < step.weights.size(); ++i)
      news.push_back({step.weights[i] - step.learning_rate * cast(step.gradients[i], f32)});
    return news;
  }
};

TEST(LowPrecisionCopies, AreCastAfterAnOptimizerThatOmitsThem) {
  Training<Descent> with(true), without(false);
  for (int i = 0; i < 3; ++i) with.step(i), without.step(i);
  expect_same_weights(with, without);
}

TEST(LowPrecisionCopies, FollowAllOtherChangesOfTheirWeights) {
  Training<optim::AdamW> with(true), without(false);
  const auto both = [&](const auto& f) { f(with), f(without); };
  both([](auto& t) { t.step(0); });
  both([](auto& t) {  // an external value, for example from a checkpoint
    Parameter p = t.params.all()[2];
    Array value = p.read();
    for (float& x : value.template values<float>()) x *= 1.5f;
    p.write(value);
    t.step(1);
  });
  expect_same_weights(with, without);
  both([](auto& t) {  // a different program
    const Parameter p = t.params.all()[0];
    Graph g;
    compile(g, {}, {.assign = {{p, g.param(p) * 0.5}}}).run();
    t.step(2);
  });
  expect_same_weights(with, without);
  both([](auto& t) {  // a second training program of the same weights
    optim::Sgd other(t.params.all(), {});
    train::TrainingProgram program(t.model, other, {.batch = small_batch, .precision = nn::Precision::bf16});
    const SmallBatch b(3);
    program.run(b.x, b.y, 1e-2);
    t.step(4);
    program.run(b.x, b.y, 1e-2);
    t.step(5);
  });
  expect_same_weights(with, without);
  both([](auto& t) {  // a failed run
    SmallBatch b(6);
    b.x[3] = 99;
    EXPECT_THROW(t.program.run(b.x, b.y, 1e-2), Error);
    t.step(6);
  });
  expect_same_weights(with, without);
}

TEST(LowPrecisionCopies, ExistOnlyForWiderWeights) {
  EXPECT_THROW(nn::LowPrecisionCopies{f32}, DTypeError);
  nn::Params params(1);
  const nn::Linear layer(nn::Path(params) / "layer", 8, 4);
  nn::LowPrecisionCopies copies(bf16);
  Graph g;
  const Tensor x = g.input("x", {3, 8});
  const nn::Autocast autocast(g, nn::Precision::bf16, false, &copies);
  const Tensor y = layer(x), again = layer(x);
  EXPECT_EQ(copies.bytes(), 2u * 64);  // weight and bias have a cache line each
  const std::vector<Parameter> made = copies.of(params.all());
  ASSERT_EQ(made.size(), 2u);
  EXPECT_EQ(made[0].dtype(), bf16);
  EXPECT_EQ(made[0].shape(), params.all()[0].shape());
  EXPECT_FALSE(copies.of({Parameter("other", Array(Shape{2}, f32))})[0].key());
  // The gradient is the same as for a cast.
  const Tensor w = g.param(layer.weight().parameter());
  EXPECT_EQ(gradients(sum(cast(y * again, f32)), {w})[0].dtype(), f32);
  EXPECT_THROW(optim::Sgd(params.all(), {}).minimize(sum(cast(y, f32)), {made[0]}),
               Error);  // the optimizer has two parameters
  const optim::Sgd optimizer(params.all(), {});
  const Tensor loss = sum(cast(y, f32));
  for (const std::vector<bool>& only :
       {std::vector{true}, std::vector{true, true}})  // too few entries; no copies
    EXPECT_THROW(optimizer.update(loss, optimizer.differentiate(loss), {.reading = {.only_copies = only}}),
                 Error);
}

}  // namespace
