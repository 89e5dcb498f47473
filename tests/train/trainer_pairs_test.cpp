// Tests each option of a Trainer by itself, in pairs, and in two consecutive runs on one model. Plain loops
// compute the model's formula. Rows of metrics, saved steps and parameters must be the same.
#include <cmath>

#include <tilegrad/nn/layers/layers.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/nn/optimizers/optimizers.h>
#include <tilegrad/train/trainer.h>
#include "core/run/ranks.h"
#include "tests/support/files.h"
#include "tests/support/op_testing.h"
#include "tests/support/option_pairs.h"

namespace tg::optim {

bool operator==(const Schedule& a, const Schedule& b) {
  const auto fields = [](const Schedule& s) {
    return std::tuple(s.peak, s.floor, s.warmup, s.steps, s.kind, s.decay);
  };
  return fields(a) == fields(b);
}

}  // namespace tg::optim

namespace tg::train {

auto fields_of(const ProgramOptions& o) {
  const auto& [batch, threads, verify, plan_only, precision, predictions, accumulate, ranks, context_parallel,
               hoist_collectives, loss_chunks, recompute, memory_budget, memory_held, low_precision_copies,
               arena] = o;
  return std::tie(batch, threads, verify, plan_only, precision, predictions, accumulate, ranks,
                  context_parallel, hoist_collectives, loss_chunks, recompute, memory_budget, memory_held,
                  low_precision_copies, arena);
}
bool operator==(const ProgramOptions& a, const ProgramOptions& b) {
  return fields_of(a) == fields_of(b);
}
auto fields_of(const Trainer::Options& o) {
  const auto& [steps, schedule, seed, program, validate_every, validation_batches, save_every, validate_first,
               trap_nan] = o;
  return std::tie(steps, schedule, seed, program, validate_every, validation_batches, save_every,
                  validate_first, trap_nan);
}

namespace {

using namespace testing;

constexpr std::int64_t context = 4, width = 3, vocabulary = 5;
constexpr double momentum = 0.5, clip = 0.25;

// These options differ from the defaults, because the runs are short. Each row of the table changes one
// further option.
struct ShortRun : Trainer::Options {
  ShortRun() {
    steps = 5, validate_every = 2, validation_batches = 1, save_every = 3;
    schedule = {.peak = 0.5, .floor = 0.25, .warmup = 1, .steps = 5, .kind = optim::Schedule::Kind::linear};
    program.batch = 2, program.threads = 1;
  }
};
const Trainer::Options& plain(const ShortRun& run) {
  return run;
}

struct Row {
  const char* name;
  void (*set)(ShortRun&);
};
const Row rows[] = {
    {"steps", [](ShortRun& o) { o.steps = 4; }},
    {"schedule", [](ShortRun& o) { o.schedule = {.peak = 0.75, .floor = 0.125, .warmup = 2, .steps = 4}; }},
    {"seed", [](ShortRun& o) { o.seed = 9; }},
    {"validate_every", [](ShortRun& o) { o.validate_every = 1; }},
    {"validation_batches", [](ShortRun& o) { o.validation_batches = 2; }},
    {"all validation_batches", [](ShortRun& o) { o.validation_batches = 20; }},
    {"save_every", [](ShortRun& o) { o.save_every = 1; }},
    {"validate_first", [](ShortRun& o) { o.validate_first = true; }},
    {"trap_nan", [](ShortRun& o) { o.trap_nan = true; }},
    {"batch", [](ShortRun& o) { o.program.batch = 3; }},
    {"threads", [](ShortRun& o) { o.program.threads = 2; }},
    {"verify", [](ShortRun& o) { o.program.verify = true; }},
    {"plan_only", [](ShortRun& o) { o.program.plan_only = true; }},
    {"bf16", [](ShortRun& o) { o.program.precision = nn::Precision::bf16; }},
    {"predictions", [](ShortRun& o) { o.program.predictions = true; }},
    {"accumulate", [](ShortRun& o) { o.program.accumulate = 3; }},
    {"ranks", [](ShortRun& o) { o.program.ranks = std::make_shared<OneRank>(); }},
    {"context_parallel", [](ShortRun& o) { o.program.context_parallel = true; }},
    {"hoist_collectives", [](ShortRun& o) { o.program.hoist_collectives = true; }},
    {"loss_chunks", [](ShortRun& o) { o.program.loss_chunks = 2; }},
    {"recompute", [](ShortRun& o) { o.program.recompute = true; }},
    {"memory_budget", [](ShortRun& o) { o.program.memory_budget = 1 << 20; }},
    {"memory_held", [](ShortRun& o) { o.program.memory_held = 1 << 10; }},
    {"low_precision_copies", [](ShortRun& o) { o.program.low_precision_copies = false; }},
    {"arena", [](ShortRun& o) { o.program.arena = std::make_shared<SharedArena>(); }},
};

ShortRun both(std::size_t a, std::size_t b) {
  ShortRun run;
  rows[a].set(run);
  if (a != b) rows[b].set(run);
  return run;
}

// Returns the reason why these options are rejected, or "".
std::string refusal(const ShortRun& o) {
  if (o.trap_nan && o.program.ranks) return "trap_nan is for one rank";
  if (o.program.plan_only) return "plan_only";
  return "";
}

// Tokens and targets depend on all arguments. Some targets are ignored.
struct HashedBatches : Batches {
  explicit HashedBatches(bool asks) : asks_(asks) {}
  static void fill(std::uint64_t kind, std::uint64_t number, Tokens x, Tokens y) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::uint64_t h = (kind * 1000003 + number * 7919 + i) * 0x9e3779b97f4a7c15ull >> 40;
      x[i] = static_cast<std::int32_t>(h % vocabulary);
      y[i] = h / 8 % 7 == 0 ? -100 : static_cast<std::int32_t>((h / 64 + number) % vocabulary);
    }
  }
  void training(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const override {
    fill(seed, static_cast<std::uint64_t>(step), x, y);
  }
  std::int64_t validation_count() const override { return 4; }
  void validation(std::int64_t k, std::int64_t count, Tokens x, Tokens y) const override {
    fill(100 + static_cast<std::uint64_t>(count), static_cast<std::uint64_t>(k), x, y);
  }
  std::int64_t answers() const override { return asks_ ? 3 : 0; }
  std::int64_t right_answers(std::span<const std::int32_t> y, const Array& predicted) const override {
    std::int64_t right = 0;
    for (std::int64_t i = 0; i < 3; ++i)
      right += y[static_cast<std::size_t>(i)] == static_cast<std::int32_t>(predicted.at(i));
    return right;
  }
  bool asks_;
};

// The model has a table with rows E and a head H. The logits of a token are H·E[token].
struct PlainModel {
  Vector e, h, me = Vector(vocabulary * width), mh = me;

  struct Evaluated {
    double loss = 0, targets = 0;  // `loss` is the mean
    Vector ze = Vector(vocabulary * width), zh = ze;
    std::vector<std::int32_t> likeliest;
  };
  Evaluated evaluate(const std::vector<std::int32_t>& x, const std::vector<std::int32_t>& y) const {
    Evaluated r;
    for (const std::int32_t t : y) r.targets += t >= 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double* row = &e[static_cast<std::size_t>(x[i]) * width];
      Vector p(vocabulary);
      double total = 0;
      for (std::size_t j = 0; j < vocabulary; ++j) {
        double logit = 0;
        for (std::size_t c = 0; c < width; ++c) logit += h[j * width + c] * row[c];
        total += p[j] = std::exp(logit);
      }
      r.likeliest.push_back(static_cast<std::int32_t>(std::ranges::max_element(p) - p.begin()));
      if (y[i] < 0) continue;
      const auto target = static_cast<std::size_t>(y[i]);
      r.loss -= std::log(p[target] / total) / r.targets;
      for (std::size_t j = 0; j < vocabulary; ++j) {
        const double z = (p[j] / total - (j == target)) / r.targets;
        for (std::size_t c = 0; c < width; ++c) {
          r.zh[j * width + c] += z * row[c];
          r.ze[static_cast<std::size_t>(x[i]) * width + c] += z * h[j * width + c];
        }
      }
    }
    return r;
  }
  double update(const Evaluated& r, double rate) {  // returns the norm of the gradient
    double squares = 0;
    for (const Vector* z : {&r.ze, &r.zh})
      for (const double g : *z) squares += g * g;
    const double norm = std::sqrt(squares), factor = std::min(1.0, clip / norm);
    for (std::size_t i = 0; i < e.size(); ++i) {
      e[i] -= rate * (me[i] = momentum * me[i] + factor * r.ze[i]);
      h[i] -= rate * (mh[i] = momentum * mh[i] + factor * r.zh[i]);
    }
    return norm;
  }
};

// The results of a run.
struct Record {
  std::vector<MetricsRow> rows;
  std::vector<std::int64_t> stepped, validated, saved;
  Trainer::State state;
};

Record by_loops(const ShortRun& o, PlainModel& model) {
  Record r;
  const HashedBatches batches(o.program.predictions);
  const auto validate = [&](bool whole, MetricsRow& row) {
    const std::int64_t count = whole ? 4 : std::min<std::int64_t>(4, o.validation_batches);
    double sum = 0, targets = 0, right = 0;
    for (std::int64_t k = 0; k < count; ++k) {
      std::vector<std::int32_t> x(static_cast<std::size_t>(o.program.batch * context)), y(x.size());
      batches.validation(k, count, x, y);
      const auto result = model.evaluate(x, y);
      sum += result.loss * result.targets, targets += result.targets;
      for (std::size_t i = 0; i < 3; ++i) right += y[i] == result.likeliest[i];
    }
    row.val_loss = static_cast<float>(sum / targets);
    if (batches.answers() > 0) row.val_accuracy = static_cast<float>(right / static_cast<double>(3 * count));
    r.validated.push_back(row.step);
  };
  if (o.validate_first) r.rows.push_back({.step = 0}), validate(false, r.rows.back());
  for (std::int64_t step = 1; step <= o.steps; ++step) {
    std::vector<std::int32_t> x(static_cast<std::size_t>(o.program.accumulate * o.program.batch * context)),
        y(x.size());
    batches.training(o.seed, step - 1, x, y);
    const auto result = model.evaluate(x, y);
    MetricsRow row{.step = step, .train_loss = static_cast<float>(result.loss)};
    const double rate = o.schedule(step - 1);
    row.lr = static_cast<float>(rate), row.grad_norm = static_cast<float>(model.update(result, rate));
    r.stepped.push_back(step);
    const bool last = step == o.steps, validates = last || step % o.validate_every == 0;
    if (validates) validate(last, row);
    r.rows.push_back(row);
    r.state.step = step;
    const bool better = validates && row.val_loss < r.state.best_loss;
    if (better) r.state.best_step = step, r.state.best_loss = row.val_loss;
    if (better || last || step % o.save_every == 0) r.saved.push_back(step);
  }
  return r;
}

struct Trained {
  nn::Params params{1};
  nn::Embedding table{nn::Path(params) / "table", vocabulary, width, nn::Init::normal(1)};
  nn::Linear head{nn::Path(params) / "head", width, vocabulary, {.bias = false, .init = nn::Init::normal(1)}};
  nn::Model model{params, {.name = "plain", .context = context, .tokens = table, .head = head}};
  optim::Sgd optimizer{params.all(), {.momentum = momentum, .clip = clip}};

  Record run(const ShortRun& o, const std::string& directory) const {
    const HashedBatches batches(o.program.predictions);
    Record r;
    const Trainer::Hooks hooks{
        .step = [&](const MetricsRow& row) { r.stepped.push_back(row.step); },
        .validated = [&](const MetricsRow& row) { r.validated.push_back(row.step); },
        .files =
            [&](const Trainer::State& state) {
              r.saved.push_back(state.step);
              return std::vector<io::CheckpointFile>{{"model.safetensors", params.all(), {}}};
            },
    };
    std::optional<io::CheckpointStore> store;
    if (!directory.empty()) store.emplace(directory);
    Trainer trainer(model, optimizer, batches, plain(o), hooks, store ? &*store : nullptr);
    r.state = trainer.run();
    r.rows = trainer.rows();
    return r;
  }
};

// Weights change by at most 0.75 per step. A step has fewer than 200 roundings of numbers up to 8. In bf16,
// each weight is rounded once, and 6 further roundings follow. Weights are below 4.
void compare(const Record& got, const Record& expected, const ShortRun& o) {
  const bool half = o.program.precision == nn::Precision::bf16;
  const double tolerance = half ? 0.05 : 200 * 8 * 0x1p-24;
  const auto expect_near = [&](float a, float b, const char* what, std::int64_t step) {
    EXPECT_TRUE((std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= tolerance)
        << what << " of step " << step << ": " << a << ", " << b;
  };
  EXPECT_EQ(got.stepped, expected.stepped);
  EXPECT_EQ(got.validated, expected.validated);
  ASSERT_EQ(got.rows.size(), expected.rows.size());
  for (std::size_t i = 0; i < got.rows.size(); ++i) {
    const MetricsRow &a = got.rows[i], &b = expected.rows[i];
    EXPECT_EQ(a.step, b.step);
    expect_near(a.train_loss, b.train_loss, "the loss", b.step);
    expect_near(a.val_loss, b.val_loss, "the validation", b.step);
    expect_near(a.grad_norm, b.grad_norm, "the norm", b.step);
    EXPECT_TRUE(a.lr == b.lr || (std::isnan(a.lr) && std::isnan(b.lr)));
    EXPECT_EQ(a.tokens_per_s > 0, b.step > 0);
    if (!half) expect_near(a.val_accuracy, b.val_accuracy, "the accuracy", b.step);
  }
  EXPECT_EQ(got.state.step, expected.state.step);
  if (half) return;
  EXPECT_EQ(got.state.best_step, expected.state.best_step);
  EXPECT_NEAR(got.state.best_loss, expected.state.best_loss, tolerance);
  if (!got.saved.empty()) {
    EXPECT_EQ(got.saved, expected.saved);
  }
}

void check(const std::vector<ShortRun>& runs, bool stores) {
  const Trained trained;
  PlainModel model{doubles(trained.table.weight().parameter().read()),
                   doubles(trained.head.weight().parameter().read())};
  bool half = false;
  for (const ShortRun& o : runs) {
    const TemporaryDirectory directory;
    if (const std::string why = refusal(o); !why.empty()) {
      expect_error<Error>([&] { trained.run(o, ""); }, {"[trainer]", why, "trainer_pairs_test.cpp"});
      continue;
    }
    half = half || o.program.precision == nn::Precision::bf16;
    ShortRun tolerance = o;
    if (half) tolerance.program.precision = nn::Precision::bf16;
    compare(trained.run(o, stores ? directory / "run" : ""), by_loops(o, model), tolerance);
  }
  const double tolerance = half ? 0.1 : 400 * 8 * 0x1p-24;
  EXPECT_TRUE(close(doubles(trained.params.all()[0].read()), model.e, tolerance));
  EXPECT_TRUE(close(doubles(trained.params.all()[1].read()), model.h, tolerance));
}

TEST(TrainerPairs, RowsSetEachField) {
  expect_each_field_is_set(std::size(rows), [](std::size_t i) { return both(i, i); });
  struct Programs : ProgramOptions {
    Programs() : ProgramOptions(ShortRun().program) {}
    explicit Programs(const ProgramOptions& o) : ProgramOptions(o) {}
  };
  expect_each_field_is_set(std::size(rows), [](std::size_t i) { return Programs(both(i, i).program); });
}

TEST(TrainerPairs, OptionsOfOneRunMatchPlainLoops) {
  each_pair(std::size(rows), [](std::size_t a, std::size_t b) {
    SCOPED_TRACE(std::string(rows[a].name) + " and " + rows[b].name);
    check({both(a, b)}, a == b && std::string(rows[a].name).ends_with("_every"));  // saving is slow
  });
}

TEST(TrainerPairs, OptionsOfTwoRunsMatchPlainLoops) {
  each_pair(std::size(rows), [](std::size_t a, std::size_t b) {
    SCOPED_TRACE(std::string(rows[a].name) + " and then " + rows[b].name);
    check({both(a, a), both(b, b)}, false);
  });
}

}  // namespace
}  // namespace tg::train
