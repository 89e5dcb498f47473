// Compares SGD, Adam and Muon with their published formulas, computed in doubles. Also tests skipped steps,
// decay, schedules, gradients that are accumulated over batches, and recomputed blocks.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include <tilegrad/nn/models/deepseek.h>
#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/models/llama.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/tilegrad.h>
#include "tests/support/files.h"
#include "tests/support/op_testing.h"
#include "tests/support/plain_orthogonalized.h"
#include "tests/support/small_gpt.h"

namespace {

using namespace tg;
using namespace tg::testing;

constexpr double inf = std::numeric_limits<double>::infinity();

// The loss Σ w ⊛ c. Its gradient is c, which is an input.
struct SlopeOf {
  nn::Params params{1, f64};
  Parameter matrix = params.create("matrix", {2, 3}, nn::Init::normal(1));
  Parameter gain = params.create("gain", {3}, nn::Init::ones());
  Graph graph;
  Tensor c_matrix = graph.input("c_matrix", {2, 3}, f64), c_gain = graph.input("c_gain", {3}, f64);
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::Optimizer::Update update;
  std::optional<Program> program;

  template <class T>
  void learn_by(const typename T::Options& options) {
    optimizer = std::make_unique<T>(params.all(), options);
    update = optimizer->minimize(sum(graph.param(matrix) * c_matrix) + sum(graph.param(gain) * c_gain));
    program.emplace(
        compile(graph, {update.grad_norm, update.skipped}, {.assign = update.assign, .verify = true}));
  }
  void run(const Vector& a, const Vector& b, float lr) {
    program->run({{c_matrix, a}, {c_gain, b}, {update.learning_rate, std::vector<float>{lr}}});
  }
};

Vector values(const Parameter& p) {
  return p.read().values<double>();
}

TEST(Sgd, StepsMatchPyTorch) {
  for (const auto& [momentum, nesterov] : {std::pair(0.0, false), {0.9, false}, {0.9, true}}) {
    SlopeOf s;
    s.learn_by<optim::Sgd>({.momentum = momentum, .nesterov = nesterov, .weight_decay = 0.1, .clip = 0});
    Vector p[] = {values(s.matrix), values(s.gain)}, b[] = {Vector(6, 0.0), Vector(3, 0.0)};
    for (int t = 0; t < 5; ++t) {
      const Vector g[] = {random_vector(6, t), random_vector(3, t + 50)};
      const float lr = 0.01f * static_cast<float>(t + 1);
      s.run(g[0], g[1], lr);
      for (int i = 0; i < 2; ++i)
        for (std::size_t k = 0; k < p[i].size(); ++k) {
          const double z = g[i][k] + (i == 0 ? 0.1 * p[i][k] : 0);  // gains do not decay
          b[i][k] = momentum * b[i][k] + z;
          p[i][k] -= double{lr} * (nesterov ? z + momentum * b[i][k] : b[i][k]);
        }
      EXPECT_TRUE(close(values(s.matrix), p[0], 1e-14));
      EXPECT_TRUE(close(values(s.gain), p[1], 1e-14));
    }
    EXPECT_EQ(s.optimizer->state().size(), momentum == 0 ? 2u : 4u);
  }
}

TEST(Sgd, NesterovWithoutMomentumIsAnError) {
  nn::Params params;
  params.create("w", {2}, nn::Init::ones());
  EXPECT_THROW(optim::Sgd(params.all(), {.momentum = 0, .nesterov = true}), Error);
}

TEST(AdamW, ChecksTheDecayOfEachParameter) {
  nn::Params params;
  const std::string names[] = {"a", "b", "c"};
  for (const std::string& name : names) params.create(name, {2, 2}, nn::Init::ones());
  for (const std::string& bad : names)
    EXPECT_EQ(error_of([&] {
                optim::AdamW(params.all(),
                             {.decay = [&](const Parameter& p) { return p.name() == bad ? -1.0 : 0.5; }});
              }),
              "[optimizer] decay of " + bad +
                  " is out of range: got -1, expected a number of at least 0, finite in f32");
}

TEST(Schedule, ChecksItsOptionsBeforeTheStep) {
  optim::Schedule s;
  s.peak = -1;
  EXPECT_EQ(error_of([&] { s(-1); }), error_of([&] { s.check(); }));
}

TEST(Adam, MatchesAdamWWithoutDecay) {
  SlopeOf s;
  s.learn_by<optim::AdamW>({.beta2 = 0.999, .weight_decay = 0, .clip = 0});
  const Vector before = values(s.matrix), g = {1, -2, 3, 0.5, -0.5, 4};
  s.run(g, {0, 0, 0}, 0.125f);
  for (std::size_t i = 0; i < g.size(); ++i)  // the first step changes each weight by the rate
    EXPECT_NEAR(values(s.matrix)[i], before[i] - 0.125 * (g[i] > 0 ? 1 : -1), 1e-8);
}

TEST(Muon, OrthogonalizedMovesSingularValuesNearOne) {
  for (const Shape& shape : {Shape{8, 24}, Shape{24, 8}, Shape{16, 16}}) {
    Graph g;
    const auto n = static_cast<std::size_t>(numel(shape)), cols = static_cast<std::size_t>(shape[1]);
    const Vector x = random_vector(n, 3);
    const Vector y = doubles(eval(optim::orthogonalized(g.constant(Array::of(shape, x)), 5)));
    // A = x·xᵀ has the smaller of x's sizes. So no intermediate result is larger than x.
    for (const Value& value : g.values()) EXPECT_LE(value.layout.numel(), numel(shape)) << shape.text();
    // In the plain loops, A always has the number of rows. The result of the polynomial is the same.
    EXPECT_TRUE(close(y, plain_orthogonalized(x, n / cols, cols, 5), 1e-11)) << shape.text();
    double squares = 0;  // sum of the 8 or 16 squared singular values
    for (const double v : y) squares += v * v;
    const double each = squares / static_cast<double>(std::min(shape[0], shape[1]));
    EXPECT_GT(each, 0.7 * 0.7);
    EXPECT_LT(each, 1.2 * 1.2);
  }
}

// Tests numbers of matrices that are smaller and larger than the matrices' sizes.
TEST(Muon, OrthogonalizesEachMatrixOfABatchByItsSmallerSide) {
  for (const Shape& shape : {Shape{1, 6, 3}, Shape{1, 3, 6}, Shape{9, 6, 3}, Shape{9, 3, 6}, Shape{4, 6, 3},
                             Shape{4, 3, 6}, Shape{2, 2, 6, 3}, Shape{9, 1, 3, 6}}) {
    Graph g;
    const std::size_t rows = static_cast<std::size_t>(shape[shape.size() - 2]),
                      columns = static_cast<std::size_t>(shape[shape.size() - 1]), each = rows * columns,
                      n = static_cast<std::size_t>(numel(shape));
    const Vector x = random_vector(n, 3);
    const Vector y = doubles(eval(optim::orthogonalized(g.constant(Array::of(shape, x)), 5)));
    for (const Value& value : g.values()) EXPECT_LE(value.layout.numel(), numel(shape)) << shape.text();
    for (std::size_t at = 0; at < n; at += each) {
      const auto of = [&](const Vector& all) {
        return Vector(all.begin() + static_cast<std::ptrdiff_t>(at),
                      all.begin() + static_cast<std::ptrdiff_t>(at + each));
      };
      EXPECT_TRUE(close(of(y), plain_orthogonalized(of(x), rows, columns, 5), 1e-11)) << shape.text();
    }
  }
}

TEST(Muon, UpdatesMatricesByOrthogonalMomentumAndOthersByAdamW) {
  SlopeOf s, adam;
  s.learn_by<optim::Muon>({.momentum = 0.9, .weight_decay = 0.1, .clip = 0});
  adam.learn_by<optim::AdamW>({.clip = 0});
  Vector p = values(s.matrix), b(6, 0.0);
  for (int t = 0; t < 4; ++t) {
    const Vector g = random_vector(6, t), gain = random_vector(3, t + 50);
    const float lr = 0.01f;
    s.run(g, gain, lr);
    adam.run(g, gain, lr);
    Vector u(6);
    for (std::size_t k = 0; k < 6; ++k) b[k] = 0.9 * b[k] + g[k], u[k] = g[k] + 0.9 * b[k];
    const Vector o = plain_orthogonalized(u, 2, 3, 5);
    for (std::size_t k = 0; k < 6; ++k) p[k] = (1 - lr * 0.1) * p[k] - lr * 0.2 * std::sqrt(3.0) * o[k];
    EXPECT_TRUE(close(values(s.matrix), p, 1e-12));
    EXPECT_TRUE(s.gain.read().same_bits(adam.gain.read()));
  }
}

// The gradients and their norm are in the range of the dtype, but the squares of the gradients are not.
TEST(Clipping, ActsOnGradientsOfAnyFiniteSize) {
  for (const auto& [dtype, sizes] :
       {std::pair(f32, Vector{1e20, 3e37, 1e-25}), {f64, Vector{1e200, 1e-200}}, {bf16, Vector{1e20, 1e-25}}})
    for (const double size : sizes)
      for (const bool of_blocks : {false, true}) {
        nn::Params params{1, dtype};
        const Parameter p = params.create("p", {3}, nn::Init::zeros());
        Graph graph;
        const Tensor c = graph.input("c", {3}, dtype), loss = sum(graph.param(p) * c);
        const double clip = size > 1 ? 0.5 : size / 2;
        const optim::Sgd sgd(params.all(), {.momentum = 0, .weight_decay = 0, .clip = clip});
        const optim::Optimizer::Update update =
            sgd.update(loss, sgd.differentiate(loss), {.norm_of_blocks = of_blocks});
        Program program = compile(graph, {update.grad_norm, update.skipped}, {.assign = update.assign});
        Array z({3}, dtype);
        z.set(0, 3 * size), z.set(2, -4 * size);
        program.run({{c, z}, {update.learning_rate, std::vector<float>{1}}});
        EXPECT_EQ(program.fetch(update.skipped).at(0), 0) << size;
        if (dtype != f64) {
          EXPECT_NEAR(program.fetch(update.grad_norm).at(0) / (5 * size), 1, 3 * rounding(dtype));
        }
        const Vector moved = doubles(p.read());
        for (const auto& [i, part] : {std::pair(0, -0.6), {1, 0.}, {2, 0.8}})
          EXPECT_NEAR(moved[static_cast<std::size_t>(i)] / clip, part, 6 * rounding(dtype))
              << name_of(dtype) << " " << size;
      }
}

TEST(Muon, OrthogonalizesMatricesOfAnyFiniteSize) {
  const Vector x = random_vector(6, 3);
  const auto of = [&](double size) {
    Graph g;
    Array a({2, 3}, f32);
    for (std::int64_t i = 0; i < 6; ++i) a.set(i, x[static_cast<std::size_t>(i)] * size);
    return doubles(eval(optim::orthogonalized(g.constant(a), 5)));
  };
  const Vector ordinary = of(1);
  EXPECT_TRUE(close(of(0x1p70), ordinary, 1e-5));
  EXPECT_TRUE(close(of(0x1p120), ordinary, 1e-5));
  // The divisor is the norm of x plus 1e-7.
  for (const double size : {1e-6, 1e-7, 3e-8}) {
    Vector small = x;
    for (double& v : small) v *= size;
    EXPECT_TRUE(close(of(size), plain_orthogonalized(small, 2, 3, 5), 1e-4)) << size;
  }
  for (const double y : of(0)) EXPECT_EQ(y, 0);
}

TEST(Muon, BatchesMatricesOfOneShape) {
  const Shape shapes[] = {{2, 3}, {3, 2}, {3, 3}, {2, 3}};
  nn::Params params{1, f64};
  Graph graph;
  std::vector<Parameter> matrices;
  std::vector<Feed> feeds;
  Tensor loss = full(graph, {}, 0, f64);
  for (std::size_t i = 0; i < std::size(shapes); ++i) {
    matrices.push_back(params.create("m" + std::to_string(i), shapes[i], nn::Init::normal(1)));
    const Tensor c = graph.input("c" + std::to_string(i), shapes[i], f64);
    feeds.emplace_back(c, random_vector(static_cast<std::size_t>(numel(shapes[i])), static_cast<int>(i)));
    loss = loss + sum(graph.param(matrices[i]) * c);
  }
  const optim::Optimizer::Update update =
      optim::Muon(params.all(), {.momentum = 0, .weight_decay = 0, .clip = 0}).minimize(loss);
  Program program = compile(graph, {update.grad_norm}, {.assign = update.assign, .verify = true});
  const auto products = std::ranges::count_if(
      program.steps(), [](const Step& s) { return s.name.find("matmul") != std::string::npos; });
  EXPECT_EQ(products, 5 * 3 * 2) << "three in each iteration, of two shapes";
  std::vector<Vector> before;
  for (const Parameter& p : matrices) before.push_back(values(p));
  feeds.emplace_back(update.learning_rate, 0.125);
  program.run(feeds);
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const auto rows = static_cast<std::size_t>(shapes[i][0]),
               columns = static_cast<std::size_t>(shapes[i][1]);
    const Vector o =
        plain_orthogonalized(random_vector(rows * columns, static_cast<int>(i)), rows, columns, 5);
    for (std::size_t k = 0; k < o.size(); ++k)
      before[i][k] -= 0.125 * 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns))) * o[k];
    EXPECT_TRUE(close(values(matrices[i]), before[i], 1e-11)) << shapes[i].text();
  }
}

TEST(Muon, MultipliesInTheRequestedDtype) {
  const Shape shapes[] = {{24, 40}, {40, 24}};
  const auto run = [&](std::optional<DType> products) {
    nn::Params params{1, f32};
    Graph graph;
    Tensor loss = full(graph, {}, 0, f32);
    std::vector<Feed> feeds;
    for (std::size_t i = 0; i < std::size(shapes); ++i) {
      const Parameter p = params.create("m" + std::to_string(i), shapes[i], nn::Init::normal(0));
      const Tensor c = graph.input("c" + std::to_string(i), shapes[i], f32);
      feeds.emplace_back(c, Array::of(shapes[i], random_vector(24 * 40, static_cast<int>(i))).to(f32));
      loss = loss + sum(graph.param(p) * c);
    }
    const optim::Optimizer::Update update =
        optim::Muon(params.all(), {.momentum = 0, .weight_decay = 0, .clip = 0, .products = products})
            .minimize(loss);
    Program program = compile(graph, {update.grad_norm}, {.assign = update.assign, .verify = true});
    for (const Step& s : program.steps())
      if (s.name.find("matmul") != std::string::npos) {
        EXPECT_EQ(s.in[0].dtype, products.value_or(f32));
      }
    feeds.emplace_back(update.learning_rate, static_cast<float>(1 / (0.2 * std::sqrt(40.))));
    program.run(feeds);
    Vector moved;  // −o for both matrices
    for (const Parameter& p : params.all())
      for (const double v : doubles(p.read())) moved.push_back(-v);
    return moved;
  };
  const Vector exact = run(std::nullopt), rounded = run(bf16);
  EXPECT_FALSE(close(rounded, exact, 1e-4));
  EXPECT_TRUE(close(rounded, exact, 0.03));
  EXPECT_TRUE(close(run(f64), exact, 1e-5));
  const std::vector<Parameter> none;
  EXPECT_THROW(optim::Muon(none, {.products = i32}), Error);
}

TEST(Muon, SelectsTheHiddenMatricesOfEveryModel) {
  for (const nn::Architecture& architecture :
       {nn::Architecture(nn::Gpt{}), nn::Architecture(nn::Llama{}),
        nn::Architecture(nn::DeepSeek{.latent = 16, .rope_width = 8})}) {
    nn::ModelConfig config = small_gpt();
    config.architecture = architecture;
    config.tied_head = false;
    nn::Params params;
    const nn::Model model(params, config);
    for (const Parameter& p : params.all()) {
      const bool outside =
          p.name().find("wte") != std::string::npos || p.name().find("wpe") != std::string::npos ||
          p.name().find("embed") != std::string::npos || p.name().find("head.") != std::string::npos;
      EXPECT_EQ(optim::Muon::hidden_matrix(p), p.shape().size() == 2 && !outside) << p.name();
    }
  }
}

TEST(Optimizers, ASkippedStepChangesNothingBitwise) {
  const auto check = [](auto tag, const auto& options) {
    SlopeOf s;
    s.learn_by<std::remove_pointer_t<decltype(tag)>>(options);
    s.run({1, 2, 3, 4, 5, 6}, {1, 1, 1}, 0.1f);
    const auto bits = [&] {
      std::vector<Array> all{s.matrix.read(), s.gain.read()};
      for (const Parameter& p : s.optimizer->state())
        if (p.name() != "optimizer.skipped") all.push_back(p.read());
      return all;
    };
    const auto before = bits();
    for (const double poison : {inf, std::nan("")}) s.run({1, 2, 3, 4, 5, 6}, {1, poison, 1}, 0.1f);
    EXPECT_TRUE(same_bits(bits(), before));
    EXPECT_EQ(s.program->item<float>(s.update.skipped), 2);
    s.run({1, 2, 3, 4, 5, 6}, {1, 1, 1}, 0.1f);
    EXPECT_FALSE(same_bits(bits(), before));
  };
  check(static_cast<optim::Sgd*>(nullptr), optim::Sgd::Options{.nesterov = true});
  check(static_cast<optim::Muon*>(nullptr), optim::Muon::Options{});
}

// Two optimizers of one loss. The gradients are inputs.
struct TwoGroups {
  nn::Params params;
  Parameter a, b;
  Graph graph;
  Tensor c_a, c_b, loss;
  std::unique_ptr<optim::Optimizer> first, second;
  optim::Optimizer::Update u, v;
  std::optional<Program> program;

  explicit TwoGroups(DType dtype)
      : params(1, dtype),
        a(params.create("a", {2, 3}, nn::Init::normal(1))),
        b(params.create("b", {4, 2}, nn::Init::normal(1))),
        c_a(graph.input("c_a", {2, 3}, dtype)),
        c_b(graph.input("c_b", {4, 2}, dtype)),
        loss(tg::sum(cast(graph.param(a) * c_a, compute_type(dtype))) +
             tg::sum(cast(graph.param(b) * c_b, compute_type(dtype)))) {}
  void record(std::unique_ptr<optim::Optimizer> of_a, std::unique_ptr<optim::Optimizer> of_b) {
    first = std::move(of_a), second = std::move(of_b);
    u = first->minimize(loss), v = second->minimize(reshape(loss, {1, 1}));  // the same loss
  }
  std::vector<Assign> assigned() const {
    std::vector<Assign> all = u.assign;
    all.insert(all.end(), v.assign.begin(), v.assign.end());
    return all;
  }
  void compile_both() {
    program.emplace(compile(graph, {u.skipped, v.skipped, u.grad_norm, v.grad_norm},
                            {.assign = assigned(), .verify = true}));
  }
  void run(const Vector& z_a, const Vector& z_b) {
    program->run({{c_a, Array::of(c_a.shape(), z_a).to(c_a.dtype())},
                  {c_b, Array::of(c_b.shape(), z_b).to(c_b.dtype())},
                  {u.learning_rate, 0.1},
                  {v.learning_rate, 0.1}});
  }
  std::vector<Array> bits() const {
    std::vector<Array> all{a.read(), b.read()};
    for (const auto* o : {first.get(), second.get()})
      for (const Parameter& p : o->state())
        if (p.name() != "optimizer.skipped") all.push_back(p.read());
    return all;
  }
};

const Vector good_a = {1, 2, 3, 4, 5, 6}, good_b = {1, 1, 1, 1, 2, 2, 2, 2};

TEST(Optimizers, SharedLossSkipsTheSameSteps) {
  using optim::AdamW, optim::Muon, optim::Sgd;
  for (const DType dtype : {f64, f32, bf16, f16})
    for (const double clip : {0.0, 1.0}) {
      const auto made = [&](int kind, const Parameter& p) -> std::unique_ptr<optim::Optimizer> {
        const std::vector<Parameter> one{p};
        if (kind == 0) return std::make_unique<Sgd>(one, Sgd::Options{.clip = clip});
        if (kind == 1) return std::make_unique<AdamW>(one, AdamW::Options{.clip = clip});
        return std::make_unique<Muon>(one, Muon::Options{.clip = clip});
      };
      for (int kinds = 0; kinds < 9; ++kinds) {
        TwoGroups t(dtype);
        t.record(made(kinds / 3, t.a), made(kinds % 3, t.b));
        t.compile_both();
        t.run(good_a, good_b);
        const auto before = t.bits();
        Vector bad_a = good_a, bad_b = good_b;
        bad_a[2] = inf, bad_b[5] = std::nan("");
        t.run(bad_a, good_b);
        t.run(good_a, bad_b);
        EXPECT_TRUE(same_bits(t.bits(), before)) << name_of(dtype) << clip << kinds;
        EXPECT_EQ(t.program->item<float>(t.u.skipped), 2);
        EXPECT_EQ(t.program->item<float>(t.v.skipped), 2);
        t.run(good_a, good_b);
        for (std::size_t i = 0; i < 2; ++i) EXPECT_FALSE(t.bits()[i].same_bits(before[i]));
        EXPECT_EQ(t.program->item<float>(t.u.skipped), 2);
      }
    }
}

TEST(Optimizers, SharedLossChangesTheirScalesTogether) {
  TwoGroups t(f16);
  const optim::LossScale scale{.initial = 1024};
  t.record(std::make_unique<optim::AdamW>(std::vector{t.a}, optim::AdamW::Options{.loss_scale = scale}),
           std::make_unique<optim::Sgd>(std::vector{t.b}, optim::Sgd::Options{.loss_scale = scale}));
  t.program.emplace(compile(
      t.graph, {t.u.overflowed, t.v.overflowed, t.u.skipped, t.v.skipped, t.u.loss_scale, t.v.loss_scale},
      {.assign = t.assigned(), .verify = true}));
  Vector large = good_b;
  large[0] = 100;  // 1,024 times this gradient exceeds f16; the loss does not
  t.run(good_a, large);
  for (const auto& u : {t.u, t.v}) {
    EXPECT_EQ(t.program->item<float>(u.overflowed), 1);
    EXPECT_EQ(t.program->item<float>(u.skipped), 0);
    EXPECT_EQ(t.program->item<float>(u.loss_scale), 512);
  }
}

// Three optimizers share one call of gradients(). A mean of weights is recorded before the last optimizer. A
// program with only one of the updates skips the same steps.
TEST(Optimizers, SharedLossSharesGradientsAndOutlivesThem) {
  nn::Params params(1, f32);
  std::vector<Parameter> p;
  Graph g;
  std::vector<Tensor> c, weights;
  Tensor loss = full(g, {}, 0);
  for (int i = 0; i < 3; ++i) {
    p.push_back(params.create("p" + std::to_string(i), {2, 2}, nn::Init::normal(1)));
    c.push_back(g.input("c", {2, 2})), weights.push_back(g.param(p.back()));
    loss = loss + tg::sum(weights.back() * c.back());
  }
  const std::vector<Tensor> z = gradients(loss, weights);
  std::vector<std::unique_ptr<optim::Sgd>> optimizers;
  std::vector<optim::Optimizer::Update> updates;
  Parameter mean("mean", Array({2, 2}, f32));
  std::vector<Assign> assign;
  std::vector<Feed> rates;
  for (int i = 0; i < 3; ++i) {
    optimizers.push_back(
        std::make_unique<optim::Sgd>(std::vector{p[static_cast<std::size_t>(i)]}, optim::Sgd::Options{}));
    updates.push_back(optimizers.back()->update(loss, {z[static_cast<std::size_t>(i)]}, {}));
    optimizers.back().reset();  // its update can be recorded again without the optimizer
    for (const Assign& a : updates.back().assign) {
      assign.push_back(a);
      if (i == 0 && a.target.key() == p[0].key()) assign.push_back({mean, 0.5 * g.param(mean) + a.value});
    }
    rates.emplace_back(updates.back().learning_rate, 0.1);
  }
  // The tensor was created before the replacement. It refers to the new tensor, so it is read through the old
  // handle.
  const Tensor taken = updates[0].skipped * 2;
  Program program = compile(g, {taken, updates[0].skipped}, {.assign = assign, .verify = true});
  Program alone = compile(g, {updates[1].skipped}, {.assign = updates[1].assign});
  const auto run = [&](Program& which, double last) {
    std::vector<Feed> feeds;
    for (int i = 0; i < 3; ++i)
      feeds.emplace_back(c[static_cast<std::size_t>(i)],
                         Array::of<double>({2, 2}, {1, 1, 1, i == 2 ? last : 1}).to(f32));
    for (const Feed& f : rates)
      if (which.reads(f.input())) feeds.push_back(f);
    which.run(feeds);
  };
  const auto bits = [&] {
    std::vector<Array> all{mean.read()};
    for (const Parameter& one : p) all.push_back(one.read());
    return all;
  };
  run(program, 1);
  const auto before = bits();
  run(program, inf);
  const auto after = bits();
  for (std::size_t i = 1; i < before.size(); ++i) EXPECT_TRUE(after[i].same_bits(before[i])) << i;
  for (int k = 0; k < 4; ++k) EXPECT_FLOAT_EQ(after[0].at(k), 0.5f * before[0].at(k) + before[1].at(k));
  EXPECT_EQ(program.item<float>(taken), 2);
  EXPECT_EQ(program.item<float>(updates[0].skipped), 1);
  run(alone, inf);
  EXPECT_TRUE(p[1].read().same_bits(before[2]));
  std::erase_if(assign, [&](const Assign& a) { return a.value.id() == updates[0].skipped.id(); });
  EXPECT_THROW(compile(g, {updates[0].skipped}, {.assign = assign}), Error) << "an assignment is missing";
}

TEST(Optimizers, SetStateChangesAllOrNothing) {
  SlopeOf s;
  s.learn_by<optim::AdamW>({.loss_scale = optim::LossScale{}});
  s.run({1, 2, 3, 4, 5, 6}, {1, 1, 1}, 0.1f);
  const auto read = [&] {
    std::vector<Array> all;
    for (const Parameter& p : s.optimizer->state()) all.push_back(p.read());
    return all;
  };
  const auto before = read();
  const auto state = s.optimizer->state();
  const auto filled = [](const Shape& shape, DType dtype, double x) {
    Array a(shape, dtype);
    for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, x);
    return a;
  };
  for (std::size_t i = 0; i < before.size(); ++i) {
    std::vector<Array> values;
    for (const Array& a : before) values.push_back(filled(a.shape(), a.dtype(), 3));
    std::vector<Array> wrong = {Array({5}, before[i].dtype()), Array(before[i].shape(), i32)};
    const bool is_scale = state[i].name() == "optimizer.loss_scale", is_counter = before[i].shape().empty();
    const double least = is_scale ? 1 : 0, most = is_scale ? 0x1p60 : 0x1p24;
    if (is_counter)
      for (const double x : {-1.0, least - 0.5, 2 * most, std::nan(""), inf})
        wrong.push_back(filled({}, f32, x));
    for (const Array& w : wrong) {
      values[i] = w;
      EXPECT_THROW(s.optimizer->set_state(values), Error) << state[i].name();
      EXPECT_TRUE(same_bits(read(), before)) << state[i].name();
    }
    if (is_counter)
      for (const double x : {least, most}) {
        values[i] = filled({}, f32, x);
        s.optimizer->set_state(values);
        EXPECT_EQ(state[i].read().at(0), x) << state[i].name();
        s.optimizer->set_state(before);
      }
  }
}

TEST(Optimizers, RefuseGradientsAndParametersThatDoNotFit) {
  SlopeOf s;
  s.learn_by<optim::AdamW>({});
  const Tensor loss = sum(s.graph.param(s.matrix)), matrix = s.graph.input("z", {2, 3}, f64),
               gain = s.graph.input("g", {3}, f64);
  const auto update = [&](const std::vector<Tensor>& z) { s.optimizer->update(loss, z, {}); };
  expect_error<ShapeError>([&] { update({gain, gain}); }, {"the gradient of matrix is ", "shape [2, 3]"});
  expect_error<ShapeError>([&] { update({matrix, matrix}); }, {"the gradient of gain is ", "shape [3]"});
  expect_error<ShapeError>([&] { update({Tensor(), gain}); }, {"the gradient of matrix is undefined"});
  expect_error<Error>([&] { update({matrix}); }, {"got 1 gradients for 2 parameters"});
  const auto copies = [&](const optim::WeightReading& reading) {
    s.optimizer->update(loss, {matrix, gain}, {.reading = reading});
  };
  expect_error<Error>([&] { copies({.copies = {s.gain}}); }, {"got 1 copies of 2 parameters"});
  expect_error<Error>([&] { copies({.only_copies = {false}}); }, {"only_copies is of 1 of 2 parameters"});
  expect_error<Error>([&] { copies({.only_copies = {true, false}}); }, {"only a copy of matrix is read"});
  expect_error<GradientError>([&] { s.optimizer->differentiate(sum(matrix)); },
                              {"depends on none of the parameters, the first of which is matrix"});
  const Parameter whole("whole", Array::of<std::int32_t>({1}, {1}));
  expect_error<DTypeError>([&] { optim::AdamW({whole}); }, {"whole is i32, expected a floating type"});
  expect_error<Error>([&] { optim::AdamW({s.matrix, Parameter()}); }, {"parameter 1 is empty"});
}

// A step is an overflow if a smaller loss scale would avoid it. A scale of at least 2 can be reduced.
TEST(Optimizers, StepsThatASmallerScaleWouldSaveAreOverflows) {
  for (const double scale : {1.0, 2.0}) {
    SlopeOf s;
    s.learn_by<optim::Sgd>({.loss_scale = optim::LossScale{.initial = scale}});
    s.matrix.write(Array::of<double>({2, 3}, {0.5, 0, 0, 0, 0, 0}));
    // At scale 2, the doubled gradient overflows, but the loss does not. At scale 1, a different number is
    // infinite.
    const Vector zeros(3, 0.0), one_infinite{inf, 0, 0};
    s.run({0x1p1023, 0, 0, 0, 0, 0}, scale == 1 ? one_infinite : zeros, 0.1f);
    EXPECT_EQ(s.program->item<float>(s.update.skipped), scale == 1);
    EXPECT_EQ(s.optimizer->state().back().name(), "optimizer.overflowed");
    EXPECT_EQ(s.optimizer->state().back().read().at(0), scale == 2);
  }
}

TEST(Optimizers, EachParameterMayHaveASeparateDecay) {
  const auto decay = [](const Parameter& p) { return p.name() == "gain" ? 0.5 : 0.0; };
  const auto check = [&](auto tag, auto options) {
    options.decay = decay;
    SlopeOf s;
    s.learn_by<std::remove_pointer_t<decltype(tag)>>(options);
    const Vector matrix = values(s.matrix);
    s.run(Vector(6, 0.0), Vector(3, 0.0), 0.25f);
    EXPECT_EQ(values(s.matrix), matrix);
    for (const double x : values(s.gain)) EXPECT_DOUBLE_EQ(x, 1 - 0.25 * 0.5);
  };
  check(static_cast<optim::Sgd*>(nullptr), optim::Sgd::Options{});
  check(static_cast<optim::AdamW*>(nullptr), optim::AdamW::Options{});
  check(static_cast<optim::Muon*>(nullptr), optim::Muon::Options{});
}

TEST(Optimizers, LearnASmallModel) {
  const auto last_loss = [](const optim::Optimizer& optimizer, const nn::Model& model, double lr) {
    train::TrainingProgram training(model, optimizer, {.batch = small_batch, .threads = 1});
    const SmallBatch b;
    float loss = 0;
    for (int i = 0; i < 60; ++i) loss = training.run(b.x, b.y, lr).loss;
    return loss;
  };
  nn::Params a, b, c;
  const nn::Model sgd(a, small_gpt()), adam(b, small_gpt()), muon(c, small_gpt());
  EXPECT_LT(last_loss(optim::Sgd(a.all(), {}), sgd, 0.3), 2.0);
  EXPECT_LT(last_loss(optim::AdamW(b.all(), {.weight_decay = 0}), adam, 1e-2), 1.0);
  EXPECT_LT(last_loss(optim::Muon(c.all()), muon, 1e-2), 1.0);
}

TEST(Optimizers, NamesOfTheirStateAreDistinct) {
  nn::Params params;
  const nn::Model model(params, small_gpt());
  const optim::Sgd sgd(params.all(), {});
  const optim::AdamW adamw(params.all());
  const optim::Muon muon(params.all());
  for (const optim::Optimizer* optimizer :
       {static_cast<const optim::Optimizer*>(&sgd), static_cast<const optim::Optimizer*>(&adamw),
        static_cast<const optim::Optimizer*>(&muon)}) {
    std::set<std::string> names;
    for (const Parameter& p : optimizer->state()) EXPECT_TRUE(names.insert(p.name()).second) << p.name();
    EXPECT_GT(names.size(), params.all().size());
  }
}

// A step with n batches of b rows equals a step with one batch of n·b rows, even if their target counts
// differ.
TEST(Accumulation, MatchesTheStepOfALargerBatch) {
  SmallBatch rows;
  for (const std::int64_t n : {2, 4}) {
    nn::Params one, other;
    const nn::Model whole_model(one, small_gpt()), parts_model(other, small_gpt());
    const optim::AdamW whole_optimizer(one.all()), parts_optimizer(other.all());
    train::TrainingProgram whole(whole_model, whole_optimizer,
                                 {.batch = small_batch, .threads = 1, .verify = true});
    train::TrainingProgram parts(parts_model, parts_optimizer,
                                 {.batch = small_batch / n, .threads = 1, .verify = true, .accumulate = n});
    for (int step = 0; step < 5; ++step) {
      SmallBatch b(step);
      // Only some targets of the first rows count, so the weight of their batch is smaller.
      if (step % 2 == 1)
        for (std::size_t i = 0; i < b.y.size() / 3; ++i)
          if (i % 5 != 0) b.y[i] = -100;
      const auto expected = whole.run(b.x, b.y, 1e-2), got = parts.run(b.x, b.y, 1e-2);
      EXPECT_NEAR(got.loss, expected.loss, 1e-5 * expected.loss) << step;
      EXPECT_NEAR(got.grad_norm, expected.grad_norm, 1e-4 * expected.grad_norm) << step;
    }
    for (std::size_t i = 0; i < one.all().size(); ++i)
      EXPECT_TRUE(close(doubles(other.all()[i].read()), doubles(one.all()[i].read()), 1e-4)) << i;
    EXPECT_LT(parts.program().memory().arena, whole.program().memory().arena);
    EXPECT_EQ(parts_optimizer.state().size(), whole_optimizer.state().size());
  }
}

TEST(Accumulation, AFailedStepDoesNotAffectTheNext) {
  const SmallBatch b;
  nn::Params one, other;
  const nn::Model a(one, small_gpt()), c(other, small_gpt());
  const optim::AdamW optimizer_a(one.all()), optimizer_c(other.all());
  const train::ProgramOptions options{.batch = 2, .threads = 1, .accumulate = 2};
  train::TrainingProgram good(a, optimizer_a, options), bad(c, optimizer_c, options);
  std::vector<std::int32_t> wrong = b.x;
  wrong.back() = 1000;  // the overflow is in the second batch
  EXPECT_THROW(bad.run(wrong, b.y, 1e-2), Error);
  EXPECT_EQ(bad.run(b.x, b.y, 1e-2).loss, good.run(b.x, b.y, 1e-2).loss);
  for (std::size_t i = 0; i < one.all().size(); ++i)
    EXPECT_TRUE(other.all()[i].read().same_bits(one.all()[i].read()));
  EXPECT_THROW(bad.run({1, 2, 3}, {1, 2, 3}, 1e-2), ShapeError);
}

TEST(Accumulation, LossScalingWorksOnTheSum) {
  nn::Params params;
  const nn::Model model(params, small_gpt());
  const optim::AdamW optimizer(params.all(), {.loss_scale = optim::LossScale{.initial = 0x1p60}});
  train::TrainingProgram training(
      model, optimizer, {.batch = 2, .threads = 1, .precision = nn::Precision::f16, .accumulate = 2});
  const SmallBatch b;
  const auto first = training.run(b.x, b.y, 1e-2);
  EXPECT_EQ(first.overflowed, 1);
  EXPECT_EQ(first.loss_scale, 0x1p59f);
  train::TrainingProgram::Result last{};
  for (int i = 0; i < 80; ++i) last = training.run(b.x, b.y, 1e-2);
  EXPECT_LT(last.overflowed, 60);
  EXPECT_LT(last.loss, 1.5f);
  EXPECT_EQ(last.skipped, 0);
}

TEST(Recompute, MatchesTheStepWithLessMemory) {
  for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16}) {
    nn::Params one, other;
    nn::ModelConfig config = small_gpt(0.1);
    config.layers = 6;
    const nn::Model kept_model(one, config), again_model(other, config);
    const optim::AdamW kept_optimizer(one.all()), again_optimizer(other.all());
    const train::ProgramOptions options{
        .batch = small_batch, .threads = 1, .verify = true, .precision = precision};
    train::ProgramOptions recompute = options;
    recompute.recompute = true;
    train::TrainingProgram kept(kept_model, kept_optimizer, options, 7),
        again(again_model, again_optimizer, recompute, 7);
    for (int step = 0; step < 3; ++step) {
      const SmallBatch b(step);
      const auto expected = kept.run(b.x, b.y, 1e-2), got = again.run(b.x, b.y, 1e-2);
      EXPECT_EQ(got.loss, expected.loss) << step;
      EXPECT_NEAR(got.grad_norm, expected.grad_norm, 1e-5 * expected.grad_norm) << step;
    }
    EXPECT_LT(again.program().memory().arena, 0.6 * static_cast<double>(kept.program().memory().arena));
  }
}

}  // namespace
