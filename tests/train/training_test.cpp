// Tests AdamW, schedules, the training step of a GPT, generation and checkpoints.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include <tilegrad/io/files/file.h>
#include <tilegrad/nn/generation/generate.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/tilegrad.h>
#include <tilegrad/train/training.h>
#include "core/base/piece_size.h"
#include "core/compile/budget.h"

namespace {

using namespace tg;

constexpr double inf = std::numeric_limits<double>::infinity();

// Computes one step of AdamW with clipping for all parameters. The operations have the order of the paper and
// use doubles.
struct PlainAdamW {
  optim::AdamW::Options o;
  std::vector<std::vector<double>> w, m, v;
  std::vector<bool> decays;
  int t = 0;

  void step(const std::vector<std::vector<double>>& z, double lr) {
    double squares = 0;
    for (const auto& one : z)
      for (double x : one) squares += x * x;
    const double norm = std::sqrt(squares), scale = o.clip > 0 && norm > o.clip ? o.clip / norm : 1;
    ++t;
    for (std::size_t p = 0; p < w.size(); ++p) {
      m[p].resize(w[p].size()), v[p].resize(w[p].size());
      for (std::size_t i = 0; i < w[p].size(); ++i) {
        const double x = z[p][i] * scale;
        m[p][i] = o.beta1 * m[p][i] + (1 - o.beta1) * x;
        v[p][i] = o.beta2 * v[p][i] + (1 - o.beta2) * x * x;
        const double m_hat = m[p][i] / (1 - std::pow(o.beta1, t)),
                     v_hat = v[p][i] / (1 - std::pow(o.beta2, t));
        w[p][i] -= lr * (m_hat / (std::sqrt(v_hat) + o.eps) + (decays[p] ? o.weight_decay * w[p][i] : 0));
      }
    }
  }
};

// A loss Σ w ⊛ c. Its gradient is c, which is an input.
struct Slope {
  nn::Params params{1, f64};
  Parameter matrix = params.create("matrix", {2, 3}, nn::Init::normal(1));
  Parameter gain = params.create("gain", {3}, nn::Init::ones());
  Graph graph;
  Tensor c_matrix = graph.input("c_matrix", {2, 3}, f64), c_gain = graph.input("c_gain", {3}, f64);
  optim::AdamW optimizer;
  optim::AdamW::Update update;
  Program program;

  explicit Slope(optim::AdamW::Options options = optim::AdamW::Options())
      : optimizer(params.all(), options),
        update(optimizer.minimize(sum(graph.param(matrix) * c_matrix) + sum(graph.param(gain) * c_gain))),
        program(
            compile(graph, {update.grad_norm, update.skipped}, {.assign = update.assign, .verify = true})) {}

  void run(const std::vector<double>& a, const std::vector<double>& b, float lr) {
    program.run({{c_matrix, a}, {c_gain, b}, {update.learning_rate, std::vector<float>{lr}}});
  }
};

TEST(AdamW, StepsMatchThePaper) {
  for (const double clip : {0.0, 1.0}) {
    const optim::AdamW::Options options{.clip = clip};
    Slope s(options);
    PlainAdamW plain{options, {}, {{}, {}}, {{}, {}}, {true, false}};
    plain.w = {s.matrix.read().values<double>(), s.gain.read().values<double>()};
    const std::vector<double> a = {1, -2, 3, 0, 0.5, -0.1}, b = {0.3, 0, -7};
    for (int t = 0; t < 5; ++t) {
      std::vector<double> at = a;
      for (double& x : at) x *= std::cos(t);
      const float lr = 0.01f * static_cast<float>(t + 1);
      s.run(at, b, lr);
      plain.step({at, b}, lr);
      const auto matrix = s.matrix.read().values<double>(), gain = s.gain.read().values<double>();
      for (std::size_t i = 0; i < matrix.size(); ++i) EXPECT_NEAR(matrix[i], plain.w[0][i], 1e-6) << t;
      for (std::size_t i = 0; i < gain.size(); ++i) EXPECT_NEAR(gain[i], plain.w[1][i], 1e-6) << t;
    }
  }
}

TEST(AdamW, ReportsTheNormBeforeClipping) {
  Slope s;
  s.run({3, 0, 0, 0, 0, 0}, {0, 4, 0}, 0.1f);
  EXPECT_FLOAT_EQ(s.program.item<float>(s.update.grad_norm), 5);
}

TEST(AdamW, DecaysMatricesOnly) {
  Slope s({.weight_decay = 0.5});
  const auto before = s.matrix.read().values<double>();
  s.run({0, 0, 0, 0, 0, 0}, {0, 0, 0}, 0.25f);
  const auto after = s.matrix.read().values<double>();
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_DOUBLE_EQ(after[i], before[i] * (1 - 0.25 * 0.5));
  EXPECT_EQ(s.gain.read().values<double>(), (std::vector<double>{1, 1, 1}));
}

TEST(AdamW, SkipsAStepWithANonFiniteGradient) {
  const std::vector<double> a = {1, 2, 3, 4, 5, 6}, b = {1, 1, 1};
  Slope bad, good;
  const auto all_bits = [](const Slope& s) {
    std::vector<Array> values = {s.matrix.read(), s.gain.read()};
    for (const Parameter& p : s.optimizer.state())
      if (p.name() != "optimizer.skipped") values.push_back(p.read());
    return values;
  };
  bad.run(a, b, 0.1f);
  good.run(a, b, 0.1f);
  int skipped = 0;
  for (const double poison : {inf, -inf, std::nan("")}) {
    const auto before = all_bits(bad);
    bad.run(a, {1, poison, 1}, 0.1f);
    const auto after = all_bits(bad);
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(after[i].same_bits(before[i])) << i;
    EXPECT_EQ(bad.program.item<float>(bad.update.skipped), ++skipped);
    EXPECT_FALSE(std::isfinite(bad.program.item<float>(bad.update.grad_norm)));
  }
  // Training continues as if the skipped step had not run.
  bad.run(b.size() == 3 ? a : b, b, 0.2f);
  good.run(a, b, 0.2f);
  const auto one = all_bits(bad), other = all_bits(good);
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].same_bits(other[i])) << i;
  EXPECT_EQ(good.program.item<float>(good.update.skipped), 0);
}

TEST(Schedule, CosineWarmsUpAndFallsToItsFloor) {
  const optim::Schedule lr{.peak = 1e-3, .floor = 1e-4, .warmup = 100, .steps = 2000};
  EXPECT_DOUBLE_EQ(lr(0), 1e-3 / 101);
  EXPECT_DOUBLE_EQ(lr(49), 50e-3 / 101);
  EXPECT_DOUBLE_EQ(lr(100), 1e-3);
  EXPECT_DOUBLE_EQ(lr(1050), 0.5 * (1e-3 + 1e-4));
  EXPECT_DOUBLE_EQ(lr(2000), 1e-4);
  EXPECT_DOUBLE_EQ(lr(1000000), 1e-4);
  for (int t = 1; t < 100; ++t) EXPECT_GT(lr(t), lr(t - 1));
  for (int t = 101; t <= 2000; ++t) EXPECT_LT(lr(t), lr(t - 1));
  const optim::Schedule none{.warmup = 0, .steps = 1};
  EXPECT_DOUBLE_EQ(none(0), none.peak);
  const optim::Schedule all_warm{.warmup = 10, .steps = 10};
  EXPECT_LT(all_warm(9), all_warm.peak);
  EXPECT_DOUBLE_EQ(all_warm(10), all_warm.floor);
}

TEST(Schedule, LinearConstantAndWarmupStableDecay) {
  using Kind = optim::Schedule::Kind;
  optim::Schedule lr{.peak = 1, .floor = 0.1, .warmup = 10, .steps = 110, .kind = Kind::linear};
  EXPECT_DOUBLE_EQ(lr(0), 1.0 / 11);
  EXPECT_DOUBLE_EQ(lr(10), 1);
  EXPECT_DOUBLE_EQ(lr(60), 0.55);
  EXPECT_DOUBLE_EQ(lr(110), 0.1);
  lr.kind = Kind::constant;
  EXPECT_DOUBLE_EQ(lr(4), 5.0 / 11);
  for (const int t : {10, 60, 110, 100000}) EXPECT_DOUBLE_EQ(lr(t), 1);
  lr.kind = Kind::warmup_stable_decay;  // the last 22 steps decay
  for (const int t : {10, 60, 88}) EXPECT_DOUBLE_EQ(lr(t), 1);
  EXPECT_DOUBLE_EQ(lr(99), 0.55);
  EXPECT_DOUBLE_EQ(lr(110), 0.1);
  lr.decay = 1;  // all steps except the warm-up decay
  EXPECT_DOUBLE_EQ(lr(60), 0.55);
  lr.decay = 0;
  EXPECT_DOUBLE_EQ(lr(109), 1);
  EXPECT_DOUBLE_EQ(lr(110), 0.1);
  lr.steps = 20, lr.decay = 0.13;  // 2.6 steps, rounded
  EXPECT_DOUBLE_EQ(lr(17), 1);
  EXPECT_DOUBLE_EQ(lr(18), 0.7);
  lr.warmup = lr.steps = 0;
  EXPECT_DOUBLE_EQ(lr(0), 0.1);
  EXPECT_THROW(optim::Schedule::named("cosin"), Error);
}

// A batch of a periodic text. The model can learn this text, so the loss can fall to nearly 0.
struct Batch {
  std::vector<std::int32_t> x, y;
  Batch(const nn::ModelConfig& c, std::int64_t batch) {
    for (std::int64_t i = 0; i < batch * c.context; ++i) {
      x.push_back(static_cast<std::int32_t>((i * i + i / 5) % c.vocabulary));
      y.push_back(static_cast<std::int32_t>(((i + 1) * (i + 1) + (i + 1) / 5) % c.vocabulary));
    }
  }
};

nn::ModelConfig small(double dropout = 0) {
  return {.vocabulary = 13, .context = 16, .layers = 2, .heads = 2, .width = 32, .dropout = dropout};
}

TEST(TrainingProgram, OverfitsOneBatch) {
  nn::Params params(1);
  const nn::Model model(params, small());
  const optim::AdamW optimizer(params.all());
  train::TrainingProgram training(model, optimizer, {.batch = 4});
  train::EvaluationProgram evaluation(model, {.batch = 4});
  const Batch b(small(), 4);
  const float before = evaluation.run(b.x, b.y);
  EXPECT_NEAR(before, std::log(13.0), 0.1);
  train::TrainingProgram::Result result{};
  for (int t = 0; t < 60; ++t) result = training.run(b.x, b.y, 1e-2);
  EXPECT_LT(result.loss, 0.1);
  EXPECT_LT(evaluation.run(b.x, b.y), 0.1);
  EXPECT_EQ(result.skipped, 0);
  EXPECT_EQ(result.overflowed, 0);  // with this and the next precision, there is no loss scaling
  EXPECT_EQ(result.loss_scale, 1);
}

TEST(TrainingProgram, ReportsTheLossBeforeItsUpdate) {
  nn::Params params(1);
  const nn::Model model(params, small());
  const optim::AdamW optimizer(params.all());
  train::TrainingProgram training(model, optimizer, {.batch = 4});
  train::EvaluationProgram evaluation(model, {.batch = 4});
  const Batch b(small(), 4);
  const float before = evaluation.run(b.x, b.y);
  EXPECT_FLOAT_EQ(training.run(b.x, b.y, 1e-2).loss, before);
  EXPECT_LT(evaluation.run(b.x, b.y), before);
}

TEST(TrainingProgram, PlannedMemoryKeepsResultsBitwise) {
  nn::Params params(1);
  const nn::Model model(params, small(0.3));
  const optim::AdamW optimizer(params.all());
  train::TrainingProgram training(model, optimizer, {.batch = 4, .verify = true}, 5);
  const Batch b(small(), 4);
  for (int t = 0; t < 3; ++t) EXPECT_NO_THROW(training.run(b.x, b.y, 1e-2));
  const MemoryReport memory = training.program().memory();
  EXPECT_LT(memory.arena, 2 * memory.alive);
}

TEST(TrainingProgram, ResultIsBitwiseIdenticalForAnyThreadCount) {
  const auto trained = [](int threads) {
    nn::Params params(1);
    const nn::Model model(params, small(0.2));
    const optim::AdamW optimizer(params.all());
    train::TrainingProgram training(model, optimizer, {.batch = 4, .threads = threads}, 9);
    const Batch b(small(), 4);
    std::vector<float> losses;
    for (int t = 0; t < 3; ++t) losses.push_back(training.run(b.x, b.y, 1e-2).loss);
    return std::pair(losses, params.find("transformer.h.1.attn.c_attn.weight")->read().values<float>());
  };
  const auto one = trained(1);
  EXPECT_EQ(one, trained(2));
  EXPECT_EQ(one, trained(3));
}

TEST(TrainingProgram, UsesAllThreadsUnlessTheirNumberIsGiven) {
  const char* variable = std::getenv("TG_THREADS");
  const std::optional<std::string> before = variable ? std::optional<std::string>(variable) : std::nullopt;
  ::setenv("TG_THREADS", "3", 1);  // the number of all threads
  nn::Params params(1);
  const nn::Model model(params, small());
  const optim::AdamW optimizer(params.all());
  const auto workspaces = [&](const train::ProgramOptions& options) {  // grows with the number of threads
    const train::TrainingMemory memory = train::plan_memory(model, optimizer, options);
    return std::pair(memory.training.workspace, memory.evaluation.workspace);
  };
  const auto by_default = workspaces({.batch = 4});
  EXPECT_EQ(by_default, workspaces({.batch = 4, .threads = 3}));
  EXPECT_NE(by_default.first, workspaces({.batch = 4, .threads = 1}).first);
  EXPECT_NE(by_default.second, workspaces({.batch = 4, .threads = 1}).second);
  before ? ::setenv("TG_THREADS", before->c_str(), 1) : ::unsetenv("TG_THREADS");
}

TEST(TrainingProgram, DropoutDiffersByStepAndIsOffInEvaluation) {
  nn::Params params(1);
  const nn::Model model(params, small(0.5));
  const optim::AdamW optimizer(params.all());
  train::TrainingProgram training(model, optimizer, {.batch = 4}, 9),
      again(model, optimizer, {.batch = 4}, 9), other(model, optimizer, {.batch = 4}, 10);
  const Batch b(small(), 4);
  const float first = training.run(b.x, b.y, 0).loss;  // with learning rate 0, only the masks change
  EXPECT_NE(training.run(b.x, b.y, 0).loss, first);
  EXPECT_EQ(again.run(b.x, b.y, 0).loss, first);
  EXPECT_NE(other.run(b.x, b.y, 0).loss, first);
  train::EvaluationProgram evaluation(model, {.batch = 4});
  EXPECT_EQ(evaluation.run(b.x, b.y), evaluation.run(b.x, b.y));
}

TEST(TrainingProgram, PlannedMemoryEqualsCompiledMemory) {
  nn::Params params(1);
  const nn::Model model(params, small(0.3));
  const optim::AdamW optimizer(params.all());
  const train::ProgramOptions options{.batch = 4, .threads = 2};
  const train::TrainingMemory plan = plan_memory(model, optimizer, options);
  const MemoryReport taken = train::TrainingProgram(model, optimizer, options).program().memory();
  EXPECT_EQ(plan.training.arena, taken.arena);
  EXPECT_EQ(plan.training.workspace, taken.workspace);
  EXPECT_EQ(plan.training.inputs, taken.inputs);
  EXPECT_EQ(plan.training.constants, taken.constants);
  EXPECT_EQ(plan.training.peak(), taken.peak());
  EXPECT_EQ(plan.evaluation.peak(), train::EvaluationProgram(model, options).program().memory().peak());
  // If the evaluation shares the arena, it needs less memory.
  EXPECT_LT(plan.evaluation.arena, plan.training.arena);
  EXPECT_EQ(plan.without_parameters(), plan.training.peak() - plan.training.parameters +
                                           std::max(plan.evaluation.workspace, plan.training.workspace) -
                                           plan.training.workspace + plan.evaluation.inputs +
                                           plan.evaluation.constants + plan.evaluation.results);
  // This is more memory than any machine has.
  const std::size_t much = train::plan_memory(model, optimizer, {.batch = 1LL << 34}).without_parameters();
  EXPECT_GT(much, std::size_t{1} << 44);
  train::TrainingProgram planned(model, optimizer, {.batch = 4, .plan_only = true});
  const Batch b(small(), 4);
  EXPECT_THROW(planned.run(b.x, b.y, 1e-2), Error);
  EXPECT_THROW(planned.program().run(), Error);
  EXPECT_FALSE(planned.program().text().empty());
}

// A model whose loss has chunks in units of 64 rows. Also counts the chunks in a program.
nn::LanguageModel in_units(const nn::Model& model) {
  nn::LanguageModel with_units = model;
  with_units.loss = [model](TensorArg x, TensorArg targets, nn::LossOptions options) {
    options.unit_rows = 64;
    return model.loss(x, targets, options);
  };
  return with_units;
}
std::int64_t chunks_in(train::TrainingProgram& training) {
  return std::ranges::count_if(training.program().steps(),
                               [](const Step& s) { return s.op->name == "linear_cross_entropy"; });
}

// Returns the losses and parameters after two steps, and the memory of both programs.
struct Trained {
  std::vector<float> losses;
  std::vector<Array> parameters;
  train::TrainingMemory memory;
  Trained(const train::ProgramOptions& options, double dropout) {
    nn::Params params(1);
    const nn::Model model(params, small(dropout));
    const optim::AdamW optimizer(params.all());
    const train::ProgramOptions shared = train::sharing_memory(model, options);
    train::TrainingProgram training(model, optimizer, shared, 5);
    train::EvaluationProgram evaluation(model, shared);
    const Batch step(small(), options.batch * options.accumulate), batch(small(), options.batch);
    for (int t = 0; t < 2; ++t) {
      losses.push_back(training.run(step.x, step.y, 1e-2).loss);
      losses.push_back(evaluation.run(batch.x, batch.y));
    }
    for (const Parameter& p : params.all()) parameters.push_back(p.read());
    memory = {training.memory(), evaluation.program().memory()};
    EXPECT_GE(shared.arena->bytes(), memory.evaluation.arena);
    EXPECT_LE(shared.arena->bytes(), std::max(memory.training.arena, memory.evaluation.arena) +
                                         std::max(memory.training.workspace, memory.evaluation.workspace));
  }
};

// After a rejected call, the dropout masks must depend only on the number of completed steps.
TEST(TrainingProgram, RejectedCallDoesNotCountAsAStep) {
  for (const std::int64_t accumulate : {1, 2}) {
    const auto losses = [&](bool refused) {
      nn::Params params(1);
      const nn::Model model(params, small(0.2));
      const optim::AdamW optimizer(params.all());
      train::TrainingProgram training(model, optimizer, {.batch = 2, .threads = 1, .accumulate = accumulate});
      const Batch b(small(), 2 * accumulate);
      std::vector<float> all{training.run(b.x, b.y, 1e-2).loss};
      if (refused) {
        EXPECT_THROW(training.run({1, 2}, {1, 2}, 1e-2), ShapeError);
      }
      all.push_back(training.run(b.x, b.y, 1e-2).loss);
      return all;
    };
    EXPECT_EQ(losses(true), losses(false)) << accumulate;
  }
}

TEST(TrainingProgram, MemoryBudgetKeepsResultsBitwise) {
  for (const std::int64_t accumulate : {1, 2})
    for (const bool recompute : {false, true})
      for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16}) {
        // With several batches per step, the update needs memory for the sums. A batch needs more memory.
        train::ProgramOptions o{.batch = accumulate == 1 ? 4 : 15,
                                .threads = 1,
                                .precision = precision,
                                .accumulate = accumulate,
                                .recompute = recompute};
        const Trained free(o, 0.2);
        EXPECT_EQ(free.memory.training.recomputed.steps, 0);
        o.low_precision_copies = false;  // the same as for small budgets
        const train::TrainingMemory memory = Trained(o, 0.2).memory;
        o.low_precision_copies = true;
        o.verify = accumulate == 1;
        const auto budget_of = [&](double less) {
          return memory.peak() - static_cast<std::size_t>(less * static_cast<double>(memory.training.arena));
        };
        double most = 0.9;  // about the minimum, with recomputed GEMMs
        for (bool fits = false; !fits; most -= 0.05) {
          nn::Params params(1);
          const nn::Model model(params, small(0.2));
          const optim::AdamW optimizer(params.all());
          o.memory_budget = budget_of(most - 0.05);
          try {
            fits = train::plan_memory(model, optimizer, o).peak() > 0;
          } catch (const OutOfMemory&) {
          }
        }
        for (const double less : {0.01, recompute ? 0.02 : 0.08, most}) {
          o.memory_budget = budget_of(less);
          const Trained limited(o, 0.2);
          EXPECT_LE(limited.memory.peak(), o.memory_budget);
          if (precision == nn::Precision::full ||
              less == most) {  // with low-precision copies, a smaller budget may suffice without changes
            EXPECT_GT(limited.memory.training.recomputed.saved, 0u);
          }
          if (less == most &&
              !(accumulate > 1 && recompute)) {  // in that case the update needs the same memory
            EXPECT_GT(limited.memory.training.recomputed.products, 0);
          }
          EXPECT_EQ(limited.losses, free.losses);
          for (std::size_t i = 0; i < free.parameters.size(); ++i)
            EXPECT_TRUE(limited.parameters[i].same_bits(free.parameters[i])) << i;
        }
      }
}

// Results must be bitwise identical for any number of chunks of the loss. The number is requested explicitly,
// or a memory budget determines it. GEMMs have 64 rows.
TEST(TrainingProgram, LossChunksKeepResultsBitwise) {
  const nn::ModelConfig config{.vocabulary = 500, .context = 23, .layers = 1, .heads = 2, .width = 16};
  for (const std::int64_t accumulate : {1, 2})
    for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16, nn::Precision::f16}) {
      train::ProgramOptions o{.batch = 13, .threads = 1, .precision = precision, .accumulate = accumulate};
      struct Left {
        std::vector<Array> parameters;
        std::int64_t chunks;
        std::size_t peak;
      };
      const auto run = [&] {
        nn::Params params(1);
        const nn::Model model(params, config);
        const optim::AdamW optimizer(params.all());
        train::TrainingProgram training(in_units(model), optimizer, o);
        const Batch b(config, o.batch * o.accumulate);
        for (int i = 0; i < 3; ++i) training.run(b.x, b.y, 1e-2);
        Left left{{}, chunks_in(training), training.memory().peak()};
        for (const Parameter& p : params.all()) left.parameters.push_back(p.read());
        return left;
      };
      const Left whole = run();
      EXPECT_EQ(whole.chunks, 1);
      const auto expect_same = [&](const Left& left) {
        for (std::size_t i = 0; i < whole.parameters.size(); ++i)
          EXPECT_TRUE(left.parameters[i].same_bits(whole.parameters[i])) << left.chunks << " chunks, " << i;
      };
      for (const auto& [asked, chunks] :
           {std::pair{2, 2}, {3, 4}, {8, 4}}) {  // chunks of 64 and 128 of 299 rows
        o.loss_chunks = asked, o.verify = accumulate == 1;
        const Left left = run();
        EXPECT_EQ(left.chunks, chunks);
        expect_same(left);
      }
      if (has_small_pieces) continue;  // the memory of kernels depends on their piece size
      o.loss_chunks = 0;
      const std::size_t logits = 299 * 500 * (precision == nn::Precision::full ? 4 : 2);
      for (const std::size_t tenths : {4u, 7u}) {
        o.memory_budget = whole.peak - logits * tenths / 10;
        const Left left = run();
        EXPECT_GT(left.chunks, 1);
        EXPECT_LE(left.peak, o.memory_budget);
        expect_same(left);
      }
    }
}

// Most of the memory is for logits of 4 MiB. A budget selects the smallest number of chunks that fits.
TEST(TrainingProgram, UsesTheFewestChunksThatFitTheBudget) {
  nn::Params params(1);
  const nn::Model model(params, {.vocabulary = 4096, .context = 64, .layers = 1, .heads = 2, .width = 16});
  const optim::AdamW optimizer(params.all());
  const auto planned = [&](std::size_t budget, std::int64_t chunks = 0) {
    return train::TrainingProgram(in_units(model), optimizer,
                                  {.batch = 8,
                                   .threads = 1,
                                   .plan_only = true,
                                   .precision = nn::Precision::bf16,
                                   .loss_chunks = chunks,
                                   .memory_budget = budget,
                                   .low_precision_copies = false});
  };
  const MemoryReport free = planned(0).memory();
  EXPECT_EQ(planned(free.peak()).loss_chunks(), 1);
  const std::size_t logits = 8 * 64 * 4096 * 2;
  for (const std::int64_t chunks : {2, 4}) {
    const std::size_t sum = 4096 * 16 * 4;  // the sum of the weight's gradient in f32
    const std::size_t budget =
        free.peak() - logits * static_cast<std::size_t>(chunks - 1) / static_cast<std::size_t>(chunks) +
        2 * sum;
    const train::TrainingProgram program = planned(budget);
    EXPECT_EQ(program.loss_chunks(), chunks);
    EXPECT_LE(program.memory().peak(), budget);
    EXPECT_EQ(program.memory().recomputed.saved, free.arena - program.memory().arena);
    EXPECT_GT(program.memory().recomputed.moved, 0);
    EXPECT_EQ(planned(budget, 4).loss_chunks(), 4);  // as requested
  }
  EXPECT_THROW(planned(0, -1), Error);
  // If a budget is too small for any number of chunks, the error reports the smallest memory over all numbers
  // of chunks.
  const auto least = [&](std::int64_t chunks) -> std::size_t {
    try {
      planned(1 << 16, chunks);
    } catch (const BudgetTooSmall& e) {
      return e.least;
    }
    return 0;
  };
  EXPECT_LT(least(4), least(1));
  EXPECT_EQ(least(0), std::min({least(1), least(2), least(4)}));
  EXPECT_LE(planned(least(0)).memory().peak(), least(0));
}

TEST(TrainingProgram, ReportsTheMinimumMemory) {
  nn::Params params(1);
  const nn::Model model(params, small());
  const optim::AdamW optimizer(params.all());
  EXPECT_THROW(train::plan_memory(model, optimizer, {.batch = 4, .memory_budget = 1 << 16}), OutOfMemory);
  EXPECT_THROW(train::TrainingProgram(model, optimizer, {.batch = 4, .memory_budget = 1 << 16}), OutOfMemory);
}

TEST(LargestBatch, ReturnsTheLargestBatchThatFits) {
  int calls = 0;
  const auto line = [&](std::int64_t b) { return ++calls, static_cast<std::size_t>(1000 + 37 * b); };
  EXPECT_EQ(train::largest_batch(65536, 1000 + 37 * 1234, line), 1234);
  EXPECT_LE(calls, 6);
  EXPECT_EQ(train::largest_batch(65536, 1000 + 37 * 1235 - 1, line), 1234);
  EXPECT_EQ(train::largest_batch(1236, 1000 + 37 * 1235, line), 1235);
  EXPECT_EQ(train::largest_batch(65536, 1037, line), 1);
  EXPECT_EQ(train::largest_batch(65536, 1036, line), 0);
  EXPECT_EQ(train::largest_batch(1, 0, line), 0);
  // Memory is a quadratic function or a step function of the batch size.
  const auto square = [](std::int64_t b) { return static_cast<std::size_t>(b * b); };
  const auto steps = [](std::int64_t b) { return static_cast<std::size_t>(b / 100 * 4096); };
  for (const std::int64_t b : {2, 3, 500, 40000}) {
    EXPECT_EQ(train::largest_batch(65536, static_cast<std::size_t>(b * b), square), b);
    EXPECT_EQ(train::largest_batch(65536, static_cast<std::size_t>(b / 100 * 4096), steps),
              b / 100 * 100 + 99);
  }
}

TEST(SampleToken, DrawFrequenciesMatchTheSoftmax) {
  const std::vector<float> logits = {0, std::log(3.0f), -std::numeric_limits<float>::infinity()};
  EXPECT_EQ(nn::sample_token(logits, {.temperature = 1}, 0.0), 0);
  EXPECT_EQ(nn::sample_token(logits, {.temperature = 1}, 0.24), 0);
  EXPECT_EQ(nn::sample_token(logits, {.temperature = 1}, 0.26), 1);
  EXPECT_EQ(nn::sample_token(logits, {.temperature = 1}, 0.9999999), 1);
  EXPECT_EQ(nn::sample_token(logits, {.temperature = 0}, 0.0), 1);
  EXPECT_EQ(nn::sample_token(std::vector<float>{NAN, 1}, {.temperature = 1}, 0.0), 1);
  EXPECT_THROW(nn::sample_token(std::vector<float>{NAN, NAN}, {.temperature = 1}, 0.0), Error);
}

TEST(Generator, RepeatsTheLearnedSequence) {
  nn::Params params(1);
  nn::ModelConfig config = small();
  const nn::Model model(params, config);
  const optim::AdamW optimizer(params.all());
  train::TrainingProgram training(model, optimizer, {.batch = 1});
  Batch b(config, 1);
  for (std::size_t i = 0; i < b.x.size(); ++i) {
    b.x[i] = static_cast<std::int32_t>(i % 13);
    b.y[i] = static_cast<std::int32_t>((i + 1) % 13);
  }
  for (int t = 0; t < 40; ++t) training.run(b.x, b.y, 1e-2);
  nn::Generator generator(model);
  std::vector<std::int32_t> text = {0, 1, 2};
  generator.extend(text, 10, {.temperature = 0}, 1);
  for (std::size_t i = 0; i < text.size(); ++i) EXPECT_EQ(text[i], static_cast<std::int32_t>(i));
  std::vector<std::int32_t> one = {5}, two = {5};
  generator.extend(one, 30, {}, 3);  // longer than the context
  generator.extend(two, 30, {}, 3);
  EXPECT_EQ(one, two);
  EXPECT_EQ(one.size(), 31u);
  std::vector<std::int32_t> none;
  EXPECT_THROW(generator.extend(none, 1, {}, 1), Error);
}

// Batches read low-precision copies of weights. A separate program updates these weights.
TEST(Training, AllBatchesOfAStepUseTheSameParameters) {
  for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16}) {
    nn::Params params(1);
    const nn::Model model(
        params, nn::ModelConfig{.vocabulary = 13, .context = 16, .layers = 2, .heads = 2, .width = 32});
    const optim::AdamW optimizer(params.all());
    std::size_t bytes = 0;
    for (const std::int64_t accumulate : {1, 2, 4}) {
      const train::TrainingProgram training(model, optimizer,
                                            {.batch = 2, .precision = precision, .accumulate = accumulate});
      if (accumulate == 1) bytes = training.memory().parameters;
      EXPECT_EQ(training.memory().parameters, bytes) << accumulate;
    }
  }
}

// If dropout keeps a certain element, this element overflows. When the step is repeated, the same mask must
// be drawn.
TEST(BadNode, RepeatedStepHasTheSameDropout) {
  for (const std::int64_t accumulate : {1, 2}) {
    nn::Params params(1);
    const nn::Model model(params, small(0.5));
    const optim::AdamW optimizer(params.all());
    train::TrainingProgram training(model, optimizer, {.batch = 1, .threads = 1, .accumulate = accumulate},
                                    9);
    const Batch b(small(), accumulate);
    Parameter positions = *params.find("transformer.wpe.weight");
    Array numbers = positions.read();
    numbers.set(0, 3e38);
    positions.write(numbers);
    constexpr int steps = 16;
    std::int64_t skipped = 0;
    for (int step = 0; step < steps; ++step) {
      const bool is_skipped = training.run(b.x, b.y, 0).skipped > skipped;
      skipped += is_skipped;
      EXPECT_EQ(training.first_bad_node(b.x, b.y, step).empty(), !is_skipped) << accumulate << ", " << step;
    }
    EXPECT_GT(skipped, 0);
    EXPECT_LT(skipped, steps);
  }
}

}  // namespace
