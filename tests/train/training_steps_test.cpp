// Tests training steps of a small model. Plain loops compute the same steps. table[t] contains the logits of
// the token after t. A random number in the loss depends on the step, batch and rank. Ranks are threads.
#include <gtest/gtest.h>

#include <set>

#include <tilegrad/core/base/random.h>
#include <tilegrad/core/base/rng.h>
#include <tilegrad/core/run/cost.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/tilegrad.h>
#include <tilegrad/train/training.h>
#include "core/base/alignment.h"
#include "core/compile/budget.h"
#include "ops/random.h"
#include "tests/support/op_testing.h"
#include "tests/support/thread_ranks.h"

namespace tg {
namespace {

using namespace testing;
using Ids = std::vector<std::int32_t>;

constexpr std::int64_t vocabulary = 5, context = 12, batch = 2;
constexpr std::uint64_t seed = 77;
constexpr std::int32_t ignored = -100;

struct Bigram {
  explicit Bigram(DType dtype = f64, bool is_random = true, double factor = 1) : params(1, dtype) {
    table = params.create("table", {vocabulary, vocabulary}, nn::Init::normal(1));
    model.features = [this, factor](TensorArg tokens, const nn::CallArgs&) {
      const Tensor x = embedding(tokens.tensor().graph().param(table), tokens);
      return factor == 1 ? x : x * factor;
    };
    model.context = context;
    model.parameters = params.all();
    if (is_random)
      model.loss = [this](TensorArg x, TensorArg targets, const nn::LossOptions&) {
        const Tensor u = uniform(x.tensor().graph(), {}, 0, 1, f64);
        stream = u.graph().node_of(u.id()).attrs.as<RandomAttrs>().stream;
        return cross_entropy(x, targets) + u;
      };
  }
  double random_number(std::int64_t number) const {
    const std::uint64_t key =
        node_key(seed, static_cast<std::uint64_t>(number), static_cast<std::uint32_t>(stream));
    return uniform_array({}, f64, 0, 1, key).at(0);
  }
  nn::Params params;
  Parameter table;
  nn::LanguageModel model;
  std::uint64_t stream = 0;
};

// Tokens and targets of a step. All targets of the first row are ignored, and many in other rows.
struct Rows {
  Ids x, y;
  Rows(std::int64_t step, std::int64_t batches) {
    for (std::int64_t i = 0; i < batches * batch * context; ++i) {
      x.push_back(static_cast<std::int32_t>((i * i + 3 * i / 2 + step) % vocabulary));
      const bool is_ignored = i / context == 0 || (i / context % 3 == 1 && i % context < 5) || i % 7 == 3;
      y.push_back(is_ignored ? ignored : static_cast<std::int32_t>((i * 3 + i / 4 + 2 * step) % vocabulary));
    }
  }
};

// The sum of the losses of some positions, and the sum of the table's gradients.
struct Sums {
  double loss = 0;
  std::int64_t targets = 0;
  Vector z = Vector(static_cast<std::size_t>(vocabulary * vocabulary));
  void add(const Vector& table, std::int32_t token, std::int32_t target) {
    if (target == ignored) return;
    const double* row = table.data() + token * vocabulary;
    double sum = 0;
    for (std::int64_t k = 0; k < vocabulary; ++k) sum += std::exp(row[k]);
    loss += std::log(sum) - row[target], ++targets;
    for (std::int64_t k = 0; k < vocabulary; ++k)
      z[static_cast<std::size_t>(token * vocabulary + k)] += std::exp(row[k]) / sum - (k == target ? 1 : 0);
  }
};

// Returns the positions of a row that a rank owns. The row is divided into 2n equal pieces. Rank r owns piece
// r, counted from the beginning, and piece r, counted from the end.
std::vector<std::int64_t> positions_of(int rank, int n) {
  const std::int64_t piece = context / (2 * n);
  std::vector<std::int64_t> all;
  for (const std::int64_t p : {rank, 2 * n - 1 - rank})
    for (std::int64_t i = 0; i < piece; ++i) all.push_back(p * piece + i);
  return all;
}

struct Way {
  int ranks = 1;
  std::int64_t accumulate = 1;
  bool divides_tokens = false, divides_update = false, early = false;
};

struct StepResult {
  double loss, norm;
  Vector table;
};

constexpr double rate = 0x1p-3;
constexpr std::int64_t steps[] = {0, 1, 2, 9, 10};  // set_step() is called before the fourth

std::vector<StepResult> trained(const Way& way, const std::shared_ptr<Communicator>& ranks,
                                std::uint64_t& stream) {
  Bigram bigram;
  const auto dividing = way.divides_update ? ranks : nullptr;
  const optim::Sgd optimizer(bigram.params.all(), {.momentum = 0, .clip = 0, .ranks = dividing});
  train::TrainingProgram training(bigram.model, optimizer,
                                  {.batch = batch,
                                   .threads = 1,
                                   .accumulate = way.accumulate,
                                   .ranks = ranks,
                                   .context_parallel = way.divides_tokens,
                                   .hoist_collectives = way.early},
                                  seed);
  std::vector<StepResult> all;
  for (const std::int64_t step : steps) {
    if (step == 9) training.set_step(9);
    const Rows rows(step, way.accumulate);
    EXPECT_THROW(training.run({1}, {1}, rate), ShapeError);
    if (way.accumulate > 1) {
      EXPECT_THROW(training.run(rows.x, {1}, rate), ShapeError);
    }
    const auto r = training.run(rows.x, rows.y, rate);
    EXPECT_EQ(r.skipped, 0);
    EXPECT_EQ(r.overflowed, 0);
    EXPECT_EQ(r.loss_scale, 1);
    all.push_back({r.loss, r.grad_norm, doubles(bigram.table.read())});
  }
  stream = bigram.stream;
  return all;
}

void check(const Way& way) {
  SCOPED_TRACE(std::to_string(way.ranks) + " ranks, " + std::to_string(way.accumulate) + " batches" +
               (way.divides_tokens ? ", tokens divided" : "") +
               (way.divides_update ? ", update divided" : ""));
  std::vector<std::vector<StepResult>> results(static_cast<std::size_t>(way.ranks));
  std::vector<std::uint64_t> streams(results.size());
  if (way.ranks == 1) {
    results[0] = trained(way, nullptr, streams[0]);
  } else {
    run_thread_ranks(way.ranks, [&](const std::shared_ptr<Communicator>& ranks) {
      const auto r = static_cast<std::size_t>(ranks->rank());
      results[r] = trained(way, ranks, streams[r]);
    });
  }
  Bigram plain;
  plain.stream = streams[0];
  Vector table = doubles(plain.table.read());
  for (std::size_t i = 0; i < std::size(steps); ++i) {
    const Rows rows(steps[i], way.accumulate);
    Sums all;
    for (std::size_t t = 0; t < rows.x.size(); ++t) all.add(table, rows.x[t], rows.y[t]);
    const auto targets = static_cast<double>(all.targets);
    double loss = all.loss / targets;
    const int parts = way.divides_tokens ? way.ranks : 1;
    for (std::int64_t b = 0; b < way.accumulate; ++b)
      for (int r = 0; r < parts; ++r) {  // the weight of each part's random number is the part's number of
                                         // targets
        std::int64_t own = 0;
        for (std::int64_t row = b * batch; row < (b + 1) * batch; ++row)
          for (const std::int64_t p : positions_of(r, parts == 1 ? 1 : parts))
            own += rows.y[static_cast<std::size_t>(row * context + p)] != ignored;
        loss += plain.random_number((steps[i] * way.accumulate + b) * parts + r) * static_cast<double>(own) /
                targets;
      }
    double squares = 0;
    for (std::size_t k = 0; k < table.size(); ++k) {
      const double z = all.z[k] / targets;
      squares += z * z, table[k] -= rate * z;
    }
    for (const auto& rank : results) {
      EXPECT_NEAR(rank[i].loss, loss, 1e-6) << "step " << steps[i];
      EXPECT_NEAR(rank[i].norm, std::sqrt(squares), 1e-6);
      EXPECT_TRUE(close(rank[i].table, table, 1e-12));
    }
  }
}

TEST(TrainingSteps, OneRankMatchesLoops) {
  for (const std::int64_t accumulate : {1, 2, 3, 4, 5, 8}) check({.accumulate = accumulate});
}

TEST(TrainingSteps, RanksThatDivideBatchesMatchLoops) {
  for (const auto& [n, accumulate] : {std::pair(2, 2), {2, 4}, {2, 6}, {3, 3}, {3, 6}})
    for (const bool divides_update : {false, true})
      check(
          {.ranks = n, .accumulate = accumulate, .divides_update = divides_update, .early = accumulate == n});
}

TEST(TrainingSteps, RanksThatDivideTokensMatchLoops) {
  for (const int n : {2, 3})
    for (const std::int64_t accumulate : {1, 2, 3})
      check(
          {.ranks = n, .accumulate = accumulate, .divides_tokens = true, .divides_update = accumulate == 2});
}

// Without targets, there is nothing to learn.
TEST(TrainingSteps, BatchesWithoutTargetsDoNotCount) {
  for (const std::int64_t accumulate : {2, 3}) {
    Bigram bigram(f64, false);
    const optim::Sgd optimizer(bigram.params.all(), {.momentum = 0, .clip = 0});
    train::TrainingProgram training(bigram.model, optimizer,
                                    {.batch = batch, .threads = 1, .accumulate = accumulate});
    const Vector before = doubles(bigram.table.read());
    Rows rows(0, accumulate);
    Ids none(rows.y.size(), ignored);
    const auto r = training.run(rows.x, none, rate);
    EXPECT_EQ(r.skipped, 0);
    EXPECT_EQ(r.loss, 0);
    EXPECT_EQ(r.grad_norm, 0);
    EXPECT_EQ(doubles(bigram.table.read()), before);
    none[none.size() - 1] = 2;  // a single target, in the last batch
    Sums one;
    one.add(before, rows.x.back(), 2);
    EXPECT_NEAR(training.run(rows.x, none, rate).loss, one.loss, 1e-6);
  }
}

TEST(EvaluationSteps, EveryNumberOfRanksMatchesLoops) {
  for (const int n : {1, 2, 3})
    run_thread_ranks(n, [&](const std::shared_ptr<Communicator>& ranks) {
      for (const bool predicts : {false, true})
        for (const std::int64_t rows_of_batch : {1, 2}) {
          Bigram bigram;
          train::EvaluationProgram evaluation(bigram.model, {.batch = rows_of_batch,
                                                             .threads = 1,
                                                             .predictions = predicts,
                                                             .ranks = n == 1 ? nullptr : ranks,
                                                             .context_parallel = n > 1});
          const Vector table = doubles(bigram.table.read());
          const Rows rows(3, 2);
          const std::size_t size = static_cast<std::size_t>(rows_of_batch * context), from = context;
          const Ids x(rows.x.begin() + from, rows.x.begin() + from + static_cast<std::ptrdiff_t>(size)),
              y(rows.y.begin() + from, rows.y.begin() + from + static_cast<std::ptrdiff_t>(size));
          Sums own;
          std::vector<std::int64_t> best;
          for (std::int64_t row = 0; row < rows_of_batch; ++row)
            for (const std::int64_t p : positions_of(ranks->rank(), n)) {
              const auto at = static_cast<std::size_t>(row * context + p);
              own.add(table, x[at], y[at]);
              const auto first = table.begin() + x[at] * vocabulary;
              best.push_back(std::max_element(first, first + vocabulary) - first);
            }
          const Pending pending = evaluation.start(x, y);
          EXPECT_NEAR(evaluation.result(pending), own.loss / static_cast<double>(own.targets), 1e-6);
          EXPECT_EQ(evaluation.own_targets(y), own.targets);
          EXPECT_NEAR(evaluation.run(x, y), own.loss / static_cast<double>(own.targets), 1e-6);
          if (!predicts) {
            EXPECT_THROW(evaluation.predictions(pending), Error);
            continue;
          }
          const Array predictions = evaluation.predictions(pending);
          EXPECT_EQ(predictions.shape(), (Shape{rows_of_batch, context / n}));
          EXPECT_EQ(predictions.values<std::int64_t>(), best);
          EXPECT_THROW(evaluation.own_targets(Ids(context + 1)), ShapeError);
        }
    });
}

// In training and its evaluation, the head computes in bf16. Elsewhere, it would return f32 logits.
TEST(EvaluationSteps, LogitsHaveThePrecision) {
  for (const DType dtype : {f32, bf16}) {
    nn::Params params(1, dtype);
    const nn::Model model(params, {.vocabulary = 37, .context = 8, .layers = 1, .heads = 2, .width = 16});
    train::EvaluationProgram evaluation(
        model, {.batch = 2, .threads = 1, .plan_only = true, .precision = nn::Precision::bf16});
    int logits = 0;
    for (const Step& s : evaluation.program().steps())
      for (const Arg& a : s.out)
        if (a.layout.numel() == 2 * 8 * 37) {
          EXPECT_EQ(a.dtype, bf16) << s.name;
          ++logits;
        }
    EXPECT_GT(logits, 0);
  }
}

// The row of token 4 overflows. So a batch has a bad node if it contains this token. Previous steps have no
// effect.
TEST(TrainingSteps, FirstBadNodeBelongsToTheFailingBatch) {
  for (const std::int64_t accumulate : {1, 2, 3}) {
    Bigram bigram(f32, false, 2);
    Array numbers = bigram.table.read();
    numbers.set(4 * vocabulary, 3e38);
    numbers.set(1, 10);
    bigram.table.write(numbers);
    // At a learning rate of 1, this weight decay makes a weight infinite.
    const optim::AdamW optimizer(bigram.params.all(), {.weight_decay = 3e38});
    train::TrainingProgram training(bigram.model, optimizer,
                                    {.batch = batch, .threads = 1, .accumulate = accumulate});
    const auto size = static_cast<std::size_t>(accumulate * batch * context);
    const Ids good(size, 1), y(size, 2);
    for (const std::size_t at : {std::size_t{0}, size / 2, size - 1}) {
      Ids bad = good;
      bad[at] = 4;
      EXPECT_EQ(training.first_bad_node(good, y, 0), "");
      EXPECT_NE(training.first_bad_node(bad, y, 0), "") << accumulate << ", " << at;
      const auto before = training.run(good, y, 0).skipped;
      EXPECT_EQ(training.run(bad, y, 0).skipped, before + 1);
      EXPECT_EQ(training.first_bad_node(good, y, 0), "") << "sums of a bad step are ignored";
    }
  }
}

TEST(TrainingSteps, InvalidBatchesStepsAndRanksAreRejected) {
  Bigram bigram;
  const optim::Sgd alone(bigram.params.all(), {});
  const auto options = [](std::int64_t accumulate) {
    return train::ProgramOptions{.batch = batch, .threads = 1, .accumulate = accumulate};
  };
  train::TrainingProgram training(bigram.model, alone, options(3));
  const Rows rows(0, 3);
  const auto with = [&](std::ptrdiff_t tokens, std::ptrdiff_t targets) {
    training.run(Ids(rows.x.begin(), rows.x.end() - tokens), Ids(rows.y.begin(), rows.y.end() - targets),
                 rate);
  };
  expect_error<ShapeError>([&] { with(24, 24); },
                           {"[training] got 48 tokens and 48 targets, expected 3 times [2, 12]"});
  expect_error<ShapeError>([&] { with(0, 1); }, {"got 72 tokens and 71 targets"});
  expect_error<ShapeError>([&] { with(1, 0); }, {"got 71 tokens and 72 targets"});
  expect_error<Error>([&] { training.set_step(-1); }, {"step -1 is not the number of steps run before"});
  expect_error<Error>([&] { training.set_step(INT64_MAX / 3 + 1); },
                      {"is not the number of steps run before"});
  training.set_step(INT64_MAX / 3 - 1);
  run_thread_ranks(2, [&](const std::shared_ptr<Communicator>& ranks) {
    Bigram own;
    const optim::Sgd divided(own.params.all(), {.ranks = ranks});
    expect_error<Error>([&] { train::TrainingProgram(own.model, divided, options(2)); },
                        {"the optimizer divides its update among ranks that are not those of the program"});
    train::ProgramOptions three = options(3);
    three.ranks = ranks;
    expect_error<Error>([&] { train::TrainingProgram(own.model, divided, three); },
                        {"accumulate is 3, expected a multiple of the 2 ranks"});
    three.accumulate = 2;
    train::TrainingProgram shared(own.model, divided, three);
    expect_error<Error>([&] { shared.first_bad_node({}, {}, 0); }, {"looked for on one rank only"});
  });
}

// The reported arena must equal the allocated arena. The bytes of parameters and inputs are computed from the
// model.
TEST(TrainingMemory, ReportMatchesAllocations) {
  const auto aligned = [](std::size_t bytes) { return (bytes + 63) / 64 * 64; };
  const nn::ModelConfig config{.vocabulary = 300, .context = 16, .layers = 1, .heads = 2, .width = 64};
  for (const int n : {1, 2})
    for (const bool divides : {false, true}) {
      if (n == 1 && divides) continue;
      run_thread_ranks(n, [&](const std::shared_ptr<Communicator>& ranks) {
        for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16}) {
          std::vector<MemoryReport> reports;
          std::size_t state = 0, weights = 0;
          for (const int per_rank : {1, 2, 4}) {
            nn::Params params(1);
            const nn::Model model(params, config);
            const optim::AdamW optimizer(params.all(), {.ranks = divides ? ranks : nullptr});
            const auto arena = std::make_shared<SharedArena>();
            const train::ProgramOptions options{.batch = 2,
                                                .threads = 1,
                                                .precision = precision,
                                                .accumulate = per_rank * n,
                                                .ranks = n == 1 ? nullptr : ranks,
                                                .arena = arena};
            train::TrainingProgram training(model, optimizer, options, 5);
            const auto size = static_cast<std::size_t>(per_rank * n * 2 * 16);
            training.run(Ids(size, 1), Ids(size, 2), 1e-3);
            training.gather_weights();
            reports.push_back(training.memory());
            EXPECT_EQ(arena->bytes(), reports.back().arena + reports.back().workspace)
                << per_rank << " batches of " << n << " ranks";
            EXPECT_GE(reports.back().arena, reports.back().alive);
            state = weights = 0;
            for (const Parameter& p : params.all()) weights += aligned(p.bytes());
            for (const Parameter& p : optimizer.state()) state += aligned(p.bytes());
          }
          const std::size_t level = weights + 64;  // sums of each gradient and of the loss
          EXPECT_EQ(reports[2].constants - reports[1].constants, level);
          EXPECT_EQ(reports[2].inputs, reports[1].inputs);
          EXPECT_EQ(reports[2].parameters, reports[1].parameters);
          EXPECT_EQ(reports[1].parameters, reports[0].parameters);
          EXPECT_EQ(reports[0].parameters, weights + state);
          // Inputs are the tokens, the targets and the learning rate. If there are several batches, their
          // weight is also an input.
          EXPECT_EQ(reports[1].inputs, 2 * aligned(2 * 16 * 4) + 2 * 64);
          EXPECT_EQ(reports[0].inputs, 2 * aligned(2 * 16 * 4) + (n > 1 ? 2 : 1) * 64);
        }
      });
    }
}

// With one batch on one rank, the optimizer computes the norm. This needs one step less.
TEST(TrainingSteps, NormsUseBlocksIfAStepHasSeveralBatches) {
  const auto block_norms = [](const train::ProgramOptions& o, const std::shared_ptr<Communicator>& dividing) {
    Bigram bigram;
    const optim::Sgd optimizer(bigram.params.all(), {.ranks = dividing});
    train::TrainingProgram training(bigram.model, optimizer, o);
    return std::ranges::count_if(training.program().graph().nodes(),
                                 [](const Node& n) { return std::string_view(n.op->name) == "block_norms"; });
  };
  EXPECT_EQ(block_norms({.batch = batch, .threads = 1}, nullptr), 0);
  run_thread_ranks(2, [&](const std::shared_ptr<Communicator>& ranks) {
    train::ProgramOptions o{.batch = batch, .threads = 1, .accumulate = 2, .ranks = ranks};
    EXPECT_EQ(block_norms(o, nullptr), 1);
    EXPECT_EQ(block_norms(o, ranks), 1);
    o.accumulate = 1, o.context_parallel = true;
    EXPECT_EQ(block_norms(o, nullptr), 0);
    EXPECT_EQ(block_norms(o, ranks), 1);
  });
}

// Compiles all variants that a budget could choose. The chosen variant must move the fewest bytes of all
// variants that fit.
struct Planned {
  std::pair<bool, double> cost;
  double moved;  // bytes that are moved by steps without recomputation
  std::int64_t chunks;
  MemoryReport memory, program;
};
Planned planned(const nn::LanguageModel& model, const optim::Optimizer& optimizer, train::ProgramOptions o) {
  o.plan_only = true, o.threads = 1;
  train::TrainingProgram p(model, optimizer, o);
  double moved = 0;
  for (const Step& s : p.program().steps()) {
    for (const Arg& a : s.in) moved += bytes_of(a);
    for (const Arg& a : s.out) moved += bytes_of(a);
  }
  const MemoryReport m = p.program().memory();
  moved -= m.recomputed.moved;
  return {{m.recomputed.products > 0, moved + m.recomputed.price}, moved, p.loss_chunks(), p.memory(), m};
}

TEST(TrainingBudget, VariantWithTheFewestBytesMovedIsChosen) {
  nn::Params params(1);
  const nn::Model model(params, {.vocabulary = 1024, .context = 64, .layers = 2, .heads = 2, .width = 32});
  const optim::AdamW optimizer(params.all());
  nn::LanguageModel in_units = model;
  in_units.loss = [&](TensorArg x, TensorArg targets, nn::LossOptions options) {
    options.unit_rows = 64;
    return model.loss(x, targets, options);
  };
  for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16}) {
    train::ProgramOptions o{.batch = 8, .precision = precision};
    const Planned free = planned(in_units, optimizer, o);
    EXPECT_EQ(free.chunks, 1);
    const MemoryReport::Recomputed& none = free.memory.recomputed;
    EXPECT_EQ(none.moved + none.price + static_cast<double>(none.saved), 0);
    std::set<std::int64_t> chosen;
    for (const double part : {1.0, 0.95, 0.8, 0.7, 0.6, 0.5, 0.45, 0.4}) {
      o.memory_budget =
          free.memory.parameters +
          static_cast<std::size_t>(part * static_cast<double>(free.memory.peak() - free.memory.parameters));
      std::optional<std::pair<bool, double>> best;
      for (const std::int64_t chunks : {1, 2, 4})
        for (const bool copies : {false, true}) {
          train::ProgramOptions one = o;
          one.loss_chunks = chunks, one.low_precision_copies = copies;
          try {
            const Planned p = planned(in_units, optimizer, one);
            EXPECT_EQ(p.chunks, chunks);
            // If chunks are requested explicitly, their savings are not counted.
            EXPECT_EQ(p.memory.recomputed.moved, p.program.recomputed.moved);
            EXPECT_EQ(p.memory.recomputed.price, p.program.recomputed.price);
            EXPECT_EQ(p.memory.recomputed.saved, p.program.recomputed.saved);
            if (!best || p.cost < *best) best = p.cost;
          } catch (const OutOfMemory&) {
          }
        }
      if (!best) {
        EXPECT_THROW(planned(in_units, optimizer, o), OutOfMemory);
        continue;
      }
      const Planned got = planned(in_units, optimizer, o);
      EXPECT_EQ(got.cost, *best) << part;
      EXPECT_LE(got.memory.peak(), o.memory_budget);
      chosen.insert(got.chunks);
      if (got.chunks == 1) {
        EXPECT_EQ(got.memory.recomputed.moved, got.program.recomputed.moved);
        EXPECT_EQ(got.memory.recomputed.saved, got.program.recomputed.saved);
        continue;
      }
      // Chunks move and save bytes. The report counts both as recomputation.
      double least = 1e300;
      for (const bool copies : {false, true}) {
        train::ProgramOptions whole = o;
        whole.memory_budget = 0, whole.low_precision_copies = copies;
        const Planned w = planned(in_units, optimizer, whole);
        const double more = got.moved - w.moved;
        least =
            std::min({least, std::abs(got.memory.recomputed.moved - got.program.recomputed.moved - more) +
                                 std::abs(got.memory.recomputed.price - got.program.recomputed.price - more) +
                                 std::abs(static_cast<double>(got.memory.recomputed.saved) -
                                          std::max(0.0, static_cast<double>(w.memory.arena) -
                                                            static_cast<double>(got.memory.arena)))});
      }
      EXPECT_EQ(least, 0) << part;
    }
    EXPECT_GT(chosen.size(), 1u);
  }
}

// Tests budgets slightly below the memory of a step, and budgets that are too small for any step.
TEST(TrainingBudget, BudgetIsKeptToTheByte) {
  nn::Params params(1);
  const nn::Model model(params, {.vocabulary = 300, .context = 16, .layers = 2, .heads = 2, .width = 64});
  const auto expect_kept = [&](const optim::Optimizer& optimizer, train::ProgramOptions o) {
    o.batch = 15, o.threads = 1, o.plan_only = true;
    const std::size_t peak = train::TrainingProgram(model, optimizer, o).memory().peak();
    for (const std::size_t less : {1, 64, 1000}) {
      o.memory_budget = peak - less;
      EXPECT_LE(train::TrainingProgram(model, optimizer, o).memory().peak(), o.memory_budget)
          << o.accumulate << " batches, " << less << " bytes less";
    }
    // Smaller budgets are rejected. The error contains the budget and the minimum. A budget equal to the
    // minimum must be accepted.
    std::size_t least = 0;
    const auto refused_with = [&](std::size_t budget) -> std::string {
      o.memory_budget = budget;
      try {
        train::TrainingProgram(model, optimizer, o);
      } catch (const BudgetTooSmall& e) {
        least = e.least;
        return e.what();
      }
      return "accepted";
    };
    std::set<std::size_t> leasts;
    for (const std::size_t budget : {std::size_t{1}, std::size_t{1000}}) {
      const std::string error = refused_with(budget);
      EXPECT_TRUE(error.ends_with("memory_budget is " + bytes_text(budget))) << error;
      leasts.insert(least);
    }
    EXPECT_EQ(leasts.size(), 1u) << o.accumulate << " batches";
    EXPECT_LT(least, peak) << o.accumulate << " batches";
    EXPECT_EQ(refused_with(least), "accepted") << o.accumulate << " batches";
  };
  for (const std::int64_t accumulate : {1, 2, 4})
    expect_kept(optim::AdamW(params.all()), {.accumulate = accumulate});
  // For some weights, a step contains only this rank's shards in f32. It also contains low-precision copies
  // of the complete weights.
  run_thread_ranks(2, [&](const std::shared_ptr<Communicator>& ranks) {
    const optim::AdamW divided(params.all(), {.ranks = ranks});
    for (const std::int64_t accumulate : {2, 4})
      expect_kept(divided, {.precision = nn::Precision::bf16, .accumulate = accumulate, .ranks = ranks});
  });
}

// All chunks except the last have ⌈rows / loss_chunks⌉ rows, before the loss rounds them.
TEST(TrainingSteps, RowsOfABatchAreDividedEvenlyIntoChunks) {
  Bigram bigram(f32, false);
  std::int64_t asked = -1;
  bigram.model.loss = [&](TensorArg x, TensorArg targets, const nn::LossOptions& options) {
    asked = options.chunk_rows;
    return cross_entropy(x, targets);
  };
  const optim::Sgd optimizer(bigram.params.all(), {});
  for (const std::int64_t rows_of_text : {1, 2, 3, 7})
    for (const std::int64_t chunks : {0, 1, 2, 3, 5, 8, 12}) {
      const train::TrainingProgram training(
          bigram.model, optimizer,
          {.batch = rows_of_text, .threads = 1, .plan_only = true, .loss_chunks = chunks});
      const std::int64_t rows = rows_of_text * context;
      EXPECT_EQ(asked, chunks < 2 ? 0 : (rows + chunks - 1) / chunks) << rows << " rows in " << chunks;
    }
}

// Each plan records the model once, and the program records it once. For 512 rows, up to 4 chunks are
// planned. If nothing is recomputed, or if the loss has no chunks, only one number of chunks is planned.
TEST(TrainingBudget, OnlyUsefulVariantsArePlanned) {
  nn::Params params(1);
  const nn::Model model(params, {.vocabulary = 1024, .context = 64, .layers = 2, .heads = 2, .width = 32});
  const optim::AdamW optimizer(params.all());
  int recorded = 0;
  bool has_chunks = true;
  const nn::LanguageModel whole = model;
  nn::LanguageModel counted = whole;
  counted.features = [&](TensorArg tokens, const nn::CallArgs& call) {
    ++recorded;
    return whole.features(tokens, call);
  };
  counted.loss = [&](TensorArg x, TensorArg targets, nn::LossOptions options) {
    options.unit_rows = 64;
    if (!has_chunks) options.chunk_rows = 0;
    return model.loss(x, targets, options);
  };
  const auto plans_of = [&](const train::ProgramOptions& o) {
    recorded = 0;
    const Planned p = planned(counted, optimizer, o);
    return std::pair(recorded - 1, p.chunks);
  };
  for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16}) {
    train::ProgramOptions o{.batch = 8, .precision = precision};
    const int ways = precision == nn::Precision::full ? 1 : 2;  // with and without low-precision copies
    EXPECT_EQ(plans_of(o), std::pair(0, std::int64_t{1})) << "without a budget";
    const MemoryReport free = planned(counted, optimizer, o).memory;
    o.memory_budget = free.peak();
    EXPECT_EQ(plans_of(o), std::pair(1, std::int64_t{1})) << "it fits without changes";
    o.memory_budget = free.parameters + (free.peak() - free.parameters) * 6 / 10;
    const auto [plans, chunks] = plans_of(o);
    EXPECT_EQ(plans, 3 * ways + (chunks > 1)) << "and one for the arena without chunks";
    o.loss_chunks = 2;
    EXPECT_EQ(plans_of(o), std::pair(ways, std::int64_t{2}));
    if (precision != nn::Precision::full) continue;
    o.loss_chunks = 0, has_chunks = false;
    o.memory_budget = free.peak() - free.arena / 20;
    EXPECT_EQ(plans_of(o).first, 2) << "two chunks record the same graph as one";
    has_chunks = true;
  }
}

}  // namespace
}  // namespace tg
