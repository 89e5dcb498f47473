// Tests components of training separately: gradient sums in a fixed tree order, a rank's tokens, the search
// for the largest batch, learning rates, and errors of optimizers and budgets.
#include "train/gradient_tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include <tilegrad/nn/models/gpt.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/train/training.h>
#include "tests/support/op_testing.h"
#include "train/local_tokens.h"

namespace tg {
namespace {

using namespace testing;

// Returns the sum of `count` terms f(first), f(first + 1), … The left part of the sum has the largest power
// of two below `count` terms.
template <class T, class F>
T tree(F f, int first, int count) {
  if (count == 1) return f(first);
  int left = 1;
  while (2 * left < count) left *= 2;
  return tree<T>(f, first, left) + tree<T>(f, first + left, count - left);
}

std::size_t aligned(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Returns the values in every layout that a program may produce. Each element is x times 1.5.
std::vector<Tensor> values_of(const Tensor& x) {  // [6, 4]
  const Tensor y = x * 1.5;
  return {y,
          reshape(y, {24}),
          transpose(y, 0, 1),
          slice(y, 0, 2, 5),
          slice(y, 0, 0, 3),
          slice(y, 1, 1, 3),
          expand(slice(y, 0, 1, 2), {6, 4}),
          reshape(transpose(y, 0, 1), {24}),
          sum(y)};
}

TEST(GradientTree, SumsInAFixedTreeForEveryLayout) {
  for (const DType dtype : {f64, f32, bf16})
    for (const int count : {1, 2, 3, 4, 5, 6, 7, 8, 9}) {
      Graph g;
      const Tensor x = g.input("x", {6, 4}, dtype);
      std::vector<Tensor> values = values_of(x);
      values.push_back(x);  // no step computes this value
      std::vector<std::string> names;
      for (std::size_t i = 0; i < values.size(); ++i) names.push_back("v" + std::to_string(i));
      train::GradientTree sums(values, names, count, Device::cpu());
      std::vector<Array> inputs;
      for (int i = 0; i < count; ++i)
        inputs.push_back(Array::of({6, 4}, random_vector(24, static_cast<std::uint64_t>(i + 3))).to(dtype));
      Program program = compile(g, {}, {.assign = sums.leaves(), .threads = 1, .verify = true});
      sums.compile({.threads = 1});
      Graph last;
      const std::vector<Tensor> totals = sums.sums(last);
      Program end = compile(last, totals, {.threads = 1});
      // The reference values of each run.
      Graph plain;
      const Tensor px = plain.input("x", {6, 4}, dtype);
      std::vector<Tensor> wanted = values_of(px);
      wanted.push_back(px);
      std::vector<std::vector<Array>> each;
      for (const Array& input : inputs) each.push_back(eval(wanted, {{px, input}}, {.threads = 1}));
      for (int round = 0; round < 2; ++round) {  // stored values belong to one round
        for (int i = 0; i < count; ++i) {
          program.run({{x, inputs[static_cast<std::size_t>(i)]}});
          if (i + 1 < count) sums.add(i);
        }
        end.run();
        for (std::size_t v = 0; v < values.size(); ++v) {
          const Array total = end.fetch(totals[v]);
          EXPECT_EQ(total.shape(), values[v].shape());
          EXPECT_EQ(total.dtype(), compute_type(dtype));
          for (std::int64_t e = 0; e < total.numel(); ++e) {
            const auto at = [&](int i) { return each[static_cast<std::size_t>(i)][v].at(e); };
            const double expected =
                dtype == f64 ? tree<double>(at, 0, count)
                             : tree<float>([&](int i) { return static_cast<float>(at(i)); }, 0, count);
            ASSERT_EQ(total.at(e), expected) << name_of(dtype) << ", " << count << " values, value " << v;
          }
        }
      }
    }
}

// A step writes its complete result into the leaf. A view of a part, or an input, is copied to the leaf.
TEST(GradientTree, ViewsAndInputsAreCopiedIntoLeaves) {
  Graph g;
  const Tensor x = g.input("x", {6, 4}), y = x * 1.5;
  const std::size_t nodes = g.nodes().size();
  const struct {
    Tensor value;
    bool is_copied;
  } cases[] = {{y, false},
               {reshape(y, {24}), false},
               {reshape(y, {2, 3, 4}), false},
               {x, true},
               {transpose(y, 0, 1), true},
               {slice(y, 0, 2, 5), true},
               {slice(y, 0, 0, 3), true},
               {slice(y, 1, 0, 4, 2), true},
               {reshape(slice(y, 0, 1, 3), {8}), true}};
  ASSERT_GE(nodes, 2u);
  for (const auto& c : cases) {
    const train::GradientTree sums({c.value}, {"v"}, 1, Device::cpu());
    const Tensor leaf = sums.leaves()[0].value;
    EXPECT_EQ(leaf.id() == y.id(), !c.is_copied) << c.value.text();
    EXPECT_EQ(std::string_view(g.node_of(leaf.id()).op->name) == "copy", c.is_copied) << c.value.text();
    EXPECT_EQ(sums.leaves()[0].target.name(), "gradient.v");
    EXPECT_EQ(sums.leaves()[0].target.shape(), leaf.shape());
  }
}

TEST(GradientTree, StoresASumOfEachLevel) {
  for (const auto& [count, levels] : {std::pair(1, 0), {2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}})
    for (const DType dtype : {f32, bf16}) {
      Graph g;
      const Tensor x = g.input("x", {33}, dtype), y = g.input("y", {100}, dtype);
      const train::GradientTree sums({x * 2, y * 2}, {"x", "y"}, count, Device::cpu());
      const auto bytes = [](std::size_t each) { return aligned(33 * each) + aligned(100 * each); };
      EXPECT_EQ(sums.leaf_bytes(), bytes(size_of(dtype)));
      // The lowest level stores values in their dtype. Other levels store sums in f32.
      const std::size_t held =
          levels == 0 ? 0 : bytes(size_of(dtype)) + static_cast<std::size_t>(levels - 1) * bytes(4);
      EXPECT_EQ(sums.bytes(), sums.leaf_bytes() + held) << count;
    }
}

struct Alone final : Communicator {
  using Communicator::Communicator;
  void share(std::span<const std::byte>, const Reader&) override { throw Error("there is only one rank"); }
};

TEST(LocalTokens, MatchTheRanksPiecesOfEachRow) {
  std::vector<std::int32_t> rows(3 * 24);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
  for (const int n : {1, 2, 3, 4, 6})
    for (int rank = 0; rank < n; ++rank) {
      const Alone ranks(rank, n);
      const train::LocalTokens own(&ranks, 24);
      EXPECT_EQ(own.in_row(), 24 / n);
      EXPECT_EQ(own.ranks(), n);
      EXPECT_EQ(own.rank(), rank);
      const int piece = 24 / (2 * n);
      std::vector<std::int32_t> expected;
      for (int row = 0; row < 3; ++row)
        for (const int p : {rank, 2 * n - 1 - rank})
          for (int i = 0; i < piece; ++i) expected.push_back(row * 24 + p * piece + i);
      EXPECT_EQ(own.of(rows), expected);
      EXPECT_TRUE(own.of({}).empty());
      for (const std::size_t size : {1u, 23u, 25u, 71u})
        expect_error<ShapeError>([&] { own.of(std::span(rows).first(size)); },
                                 {"[training] got " + std::to_string(size) + " tokens, expected rows of 24"});
    }
  const train::LocalTokens all(nullptr, 24);
  EXPECT_EQ(all.of(rows), rows);
  EXPECT_EQ(all.in_row(), 24);
  EXPECT_EQ(all.ranks(), 1);
  EXPECT_EQ(all.rank(), 0);
  const Alone five(0, 5);
  EXPECT_THROW(train::LocalTokens(&five, 24), ShapeError);
}

TEST(Targets, CountsOnlyTargetsThatAreNotIgnored) {
  const std::vector<std::int32_t> targets{-100, 0, 5, -100, -99, -101, 100};
  for (std::size_t n = 0; n <= targets.size(); ++n)
    EXPECT_EQ(train::count_targets(std::span(targets).first(n)),
              static_cast<std::int64_t>(n) - (n > 0) - (n > 3));
}

// The search draws a line through both ends. It tries the batch at which this line reaches the limit. In
// every third step, it tries the middle.
TEST(LargestBatch, SearchTriesFewBatches) {
  const auto asked = [](std::int64_t too_large, std::size_t free, auto needed) {
    std::vector<std::int64_t> all;
    const std::int64_t found = train::largest_batch(too_large, free, [&](std::int64_t b) {
      all.push_back(b);
      return static_cast<std::size_t>(needed(b));
    });
    all.push_back(found);
    return all;
  };
  using Asked = std::vector<std::int64_t>;
  const auto line = [](std::int64_t b) { return 1000 + 37 * b; };
  const auto square = [](std::int64_t b) { return b * b; };
  const auto flat = [](std::int64_t b) { return b < 500 ? 7 : 8; };
  EXPECT_EQ(asked(1, 1 << 30, line), (Asked{0}));
  EXPECT_EQ(asked(0, 1 << 30, line), (Asked{0}));
  EXPECT_EQ(asked(2, 1037, line), (Asked{1, 2, 1}));
  EXPECT_EQ(asked(2, 1036, line), (Asked{1, 2, 0}));
  EXPECT_EQ(asked(65536, 46658, line), (Asked{1, 65536, 1234, 1235, 1234}));
  EXPECT_EQ(asked(65536, 46694, line), (Asked{1, 65536, 1234, 1235, 1234}));
  EXPECT_EQ(asked(65536, 1600000000, square), (Asked{1, 65536, 24414, 35575, 50555, 39457, 39936, 45245,
                                                     39996, 39999, 42622, 40000, 40001, 40000}));
  EXPECT_EQ(asked(65536, 1000000, square),
            (Asked{1,   65536, 16,   31,  32783, 61,   91,  16437, 151,  209, 8323, 321,  424,  4373,
                   594, 724,   2548, 869, 940,   1744, 983, 995,   1369, 999, 1000, 1184, 1001, 1000}));
  EXPECT_EQ(asked(65536, 10, square), (Asked{1, 65536, 2, 3, 32769, 4, 3}));
  EXPECT_EQ(asked(1000, 7, flat),
            (Asked{1,   1000, 2,   3,   501, 4,   5,   253, 254, 255, 378, 379, 380, 440,
                   441, 442,  471, 472, 473, 487, 488, 489, 495, 496, 497, 499, 500, 499}));
  EXPECT_EQ(asked(1000, 8, flat), (Asked{1, 1000, 999, 999}));
}

// Compares every kind of schedule with its documented formula.
TEST(Schedule, EveryKindFollowsItsDescription) {
  using Kind = optim::Schedule::Kind;
  for (const auto& [name, kind] : {std::pair("cosine", Kind::cosine),
                                   {"linear", Kind::linear},
                                   {"constant", Kind::constant},
                                   {"wsd", Kind::warmup_stable_decay}}) {
    EXPECT_EQ(optim::Schedule::named(name), kind);
    for (const std::int64_t warmup : {0, 1, 2, 5})
      for (const std::int64_t steps : {0, 1, 2, 5, 6, 20})
        for (const double decay : {0.0, 0.1, 0.5, 0.77, 1.0}) {
          const optim::Schedule schedule{
              .peak = 0.75, .floor = 0.125, .warmup = warmup, .steps = steps, .kind = kind, .decay = decay};
          for (std::int64_t t = 0; t < 24; ++t) {
            double expected = 0.75;
            const double begin =
                kind == Kind::warmup_stable_decay
                    ? std::max<double>(
                          static_cast<double>(warmup),
                          static_cast<double>(steps) - std::floor(decay * static_cast<double>(steps) + 0.5))
                    : static_cast<double>(warmup);
            if (t < warmup) {
              expected = 0.75 / static_cast<double>(warmup + 1) * static_cast<double>(t + 1);
            } else if (kind != Kind::constant && t >= steps) {
              expected = 0.125;
            } else if (kind != Kind::constant && static_cast<double>(t) >= begin) {
              const double part = (static_cast<double>(t) - begin) / (static_cast<double>(steps) - begin);
              const double half = std::sin(std::numbers::pi / 2 * (1 - part));
              expected = 0.125 + 0.625 * (kind == Kind::cosine ? half * half : 1 - part);
            }
            EXPECT_NEAR(schedule(t), expected, 1e-15)
                << name << " " << warmup << " " << steps << " " << decay << " " << t;
          }
          EXPECT_THROW(schedule(-1), Error);
        }
  }
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(Optimizers, UntrainableParametersAreRejected) {
  nn::Params params(1);
  Parameter a = params.create("a", {2}, nn::Init::ones()), b = params.create("b", {2, 3}, nn::Init::ones()),
            cube = params.create("cube", {2, 3, 4}, nn::Init::ones());
  using List = std::vector<Parameter>;
  const auto adamw = [](const List& list) { return error_of([&] { optim::AdamW{list}; }); };
  EXPECT_EQ(adamw({}), "[optimizer] there are no parameters");
  EXPECT_EQ(adamw({a, b, a}), "[optimizer] parameter a is given twice: it would be updated twice");
  EXPECT_EQ(adamw({a, Parameter()}), "[optimizer] parameter 1 is empty");
  EXPECT_EQ(adamw({Parameter("whole", Array({1}, i32))}),
            "[optimizer] parameter whole is i32, expected a floating type");
  const auto muon = [&](optim::Muon::Options o) {
    return error_of([&] { optim::Muon(List{a, b, cube}, o); });
  };
  EXPECT_EQ(muon({}), "none");
  const auto taking = [](const char* name) {
    return [name](const Parameter& p) { return p.name() == name; };
  };
  EXPECT_EQ(muon({.takes = taking("a")}), "[Muon] a is [2], expected two dimensions");
  EXPECT_EQ(muon({.takes = taking("cube")}), "[Muon] cube is [2, 3, 4], expected two dimensions");
  EXPECT_EQ(muon({.products = i32}), "[Muon] products is i32, expected f64, f32, bf16 or f16");
  for (const DType t : {f64, f32, bf16, f16}) EXPECT_EQ(muon({.products = t}), "none");
  EXPECT_EQ(muon({.momentum = 2, .beta1 = 3}).find("[Muon] beta1 is out of range: got 3"), 0u)
      << "the options of AdamW are checked first";
  EXPECT_EQ(error_of([&] { optim::Sgd(List{a}, {.momentum = 0, .nesterov = true}); }),
            "[Sgd] nesterov needs a momentum, got 0");
  EXPECT_EQ(error_of([&] { optim::Sgd(List{a}, {.momentum = 0.99, .nesterov = true}); }), "none");
  // This is the state of a different optimizer.
  const optim::AdamW optimizer(List{a, b}, {.loss_scale = optim::LossScale{}});
  std::vector<Array> values;
  for (const Parameter& p : optimizer.whole_state()) values.push_back(p.read());
  ASSERT_EQ(values.size(), 9u);
  const auto set = [&] { return error_of([&] { optimizer.set_state(values); }); };
  EXPECT_EQ(set(), "none");
  values[2] = Array({3, 2}, f32);
  EXPECT_EQ(set(), "[set_state] optimizer.m.b is of [2, 3], got [3, 2]");
  values[2] = Array({2, 3}, f64);
  EXPECT_EQ(set(), "[set_state] optimizer.m.b is f32, got f64");
  values.pop_back();
  EXPECT_EQ(set(), "[set_state] got 8 values, the optimizer's state has 9");
  values.clear();
  EXPECT_EQ(set(), "[set_state] got 0 values, the optimizer's state has 9");
  EXPECT_EQ(error_of([&] { optimizer.gather_state({a}); }),
            "[gather_state] got 1 values, the optimizer's state has 9");
  a.freeze();
  EXPECT_EQ(adamw({a}), "[optimizer] each of the 1 parameters is frozen, the first of which is a");
  EXPECT_EQ(adamw({a, b}), "none");
  EXPECT_EQ(optim::AdamW(List{a, b}).parameters().size(), 1u);
  EXPECT_EQ(error_of([] { optim::Schedule::named("cosin"); }),
            "[schedule] got 'cosin', expected cosine, linear, constant or wsd");
}

// This optimizer computes no new value for its last parameter.
class Forgetful final : public optim::Optimizer {
 public:
  explicit Forgetful(const std::vector<Parameter>& params) : Optimizer(params, 0, {}) {}

 private:
  std::vector<optim::NewWeight> append(const Step& step, std::vector<Assign>&) const override {
    return {{step.weights[0] * 2}};
  }
};

TEST(Optimizers, MustUpdateEachParameter) {
  nn::Params params(1);
  const Parameter a = params.create("a", {2}, nn::Init::ones()),
                  b = params.create("b", {2}, nn::Init::ones());
  Graph g;
  const Tensor loss = sum(g.param(a) * g.param(b));
  EXPECT_EQ(error_of([&] { Forgetful(params.all()).minimize(loss); }),
            "[optimizer] b gets no update: the optimizer was moved from, or its append() left it out");
  EXPECT_EQ(error_of([&] { Forgetful({a}).minimize(loss); }), "none");
}

TEST(Optimizers, UpdateOptionsAreOffByDefault) {
  const optim::Optimizer::UpdateOptions options;
  EXPECT_FALSE(options.hoist_collectives || options.norm_of_blocks);
  const train::TrainingProgram::Result result{1, 2, 3};
  EXPECT_EQ(result.overflowed, 0);
  EXPECT_EQ(result.loss_scale, 1);
  const train::TrainingMemory memory;
  EXPECT_EQ(memory.loss_chunks, 1);
}

// The expected sums and maxima of the two programs' reports.
TEST(TrainingMemory, BothProgramsShareOneArena) {
  train::TrainingMemory m;
  m.training = {
      .arena = 1000, .inputs = 1, .constants = 2, .workspace = 30, .results = 4, .parameters = 500'000};
  m.evaluation = {
      .arena = 900, .inputs = 10, .constants = 20, .workspace = 40, .results = 50, .parameters = 7};
  EXPECT_EQ(m.without_parameters(), 1000u + 40 + 7 + 80);
  m.evaluation.arena = 1100, m.evaluation.workspace = 20;
  EXPECT_EQ(m.without_parameters(), 1100u + 30 + 7 + 80);
  EXPECT_EQ(m.peak(), 501'217u);
  for (const std::size_t budget : {std::size_t{0}, std::size_t{501'217}, std::size_t{501'218}, SIZE_MAX})
    EXPECT_EQ(error_of([&] { m.require(budget); }), "none");
  for (const std::size_t budget : {1u, 501'216u}) EXPECT_THROW(m.require(budget), OutOfMemory);
}

// If a step has several batches, the program of the update may exceed a budget.
TEST(TrainingMemory, BudgetAppliesToBothPrograms) {
  nn::Params params(1);
  const nn::Model model(params, {.vocabulary = 300, .context = 16, .layers = 1, .heads = 2, .width = 64});
  const optim::AdamW optimizer(params.all());
  for (const std::int64_t accumulate : {1, 2, 4}) {
    train::ProgramOptions o{.batch = 2, .threads = 1, .plan_only = true, .accumulate = accumulate};
    const train::TrainingMemory free = train::plan_memory(model, optimizer, o);
    EXPECT_EQ(free.training.peak(), train::TrainingProgram(model, optimizer, o).memory().peak());
    o.memory_budget = free.peak();
    EXPECT_EQ(train::plan_memory(model, optimizer, o).peak(), free.peak()) << "it fits without changes";
    EXPECT_EQ(train::plan_memory(model, optimizer, o).training.recomputed.steps, 0);
    o.memory_budget = free.training.peak();
    EXPECT_EQ(train::TrainingProgram(model, optimizer, o).memory().peak(), free.training.peak());
    // With the shared options, enough memory remains for the evaluation.
    const train::ProgramOptions shared = train::sharing_memory(model, o);
    EXPECT_EQ(shared.memory_budget, o.memory_budget);
    EXPECT_EQ(shared.memory_held,
              free.evaluation.inputs + free.evaluation.constants + free.evaluation.results);
    ASSERT_TRUE(shared.arena);
    EXPECT_EQ(shared.batch, o.batch);
    train::ProgramOptions own = o;
    own.arena = std::make_shared<SharedArena>();
    own.memory_budget = 0;
    EXPECT_EQ(train::sharing_memory(model, own).arena, own.arena);
    EXPECT_EQ(train::sharing_memory(model, own).memory_budget, 0u) << "no limit remains no limit";
    own.memory_held = 10;
    EXPECT_EQ(train::sharing_memory(model, own).memory_held, shared.memory_held + 10);
    // Planning allocates no memory, so it works for a batch of any size.
    EXPECT_TRUE(train::sharing_memory(model, {.batch = std::int64_t{1} << 34, .threads = 1}).arena);
    o.memory_budget = free.training.parameters + free.training.constants;
    EXPECT_THROW(train::TrainingProgram(model, optimizer, o), OutOfMemory);
  }
}

}  // namespace
}  // namespace tg
