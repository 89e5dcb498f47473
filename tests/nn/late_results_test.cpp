// Tests training steps whose results arrive later, as on a GPU. The device of this test runs a program
// immediately, but reports its results and errors only to callers that wait for them. The test is linked with
// the library's own objects, and its backend() replaces backends/backend.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <map>

#include <sys/syscall.h>
#include <unistd.h>

#include <tilegrad/core/run/backend.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/train/trainer.h>
#include "backends/cpu/kernel.h"

// Replaces the system's clock. Only runs and waits advance this clock.
static constexpr std::int64_t second = 1'000'000'000, run_time = 10 * second, wait_time = 100 * second;
static thread_local std::int64_t shown_time = 0;  // 0: the system's clock
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  if (clock != CLOCK_MONOTONIC || shown_time == 0)
    return static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  *now = {.tv_sec = shown_time / second, .tv_nsec = shown_time % second};
  return 0;
}

namespace tg {
namespace {

void pass(std::int64_t time) {
  if (shown_time != 0) shown_time += time;
}

// The error of a run. It is kept until a transfer has reported it.
struct Failure {
  std::exception_ptr error;
  bool is_reported = false;
};

struct LateTransfer final : Transfer {
  bool done() override { return is_there; }
  void wait() override {
    if (!is_there) pass(wait_time);
    is_there = true;
    if (failure->error) {
      failure->is_reported = true;
      std::rethrow_exception(failure->error);
    }
    own->wait();
  }
  std::shared_ptr<Transfer> own;
  std::shared_ptr<Failure> failure;
  bool is_there = false;
};

class LateExecutable final : public Executable {
 public:
  explicit LateExecutable(std::unique_ptr<Executable> own) : own_(std::move(own)) {}
  std::size_t workspace_bytes() const override { return own_->workspace_bytes(); }
  void bind(std::span<const Step> steps, const ProgramMemory& memory) override { own_->bind(steps, memory); }
  void feed(std::byte* input, const std::byte* host, std::size_t bytes) override {
    own_->feed(input, host, bytes);
  }
  void run() override {
    pass(run_time);
    if (failure_->is_reported) failure_ = std::make_shared<Failure>();
    try {
      own_->run();
    } catch (...) {
      if (!failure_->error) failure_->error = std::current_exception();
    }
  }
  std::shared_ptr<Transfer> transfer(std::span<const Piece> pieces) override {
    const auto late = std::make_shared<LateTransfer>();
    late->own = own_->transfer(pieces);
    late->pieces = late->own->pieces, late->data = late->own->data, late->failure = failure_;
    return late;
  }
  std::vector<double> profile() override { return own_->profile(); }
  std::string choice(std::size_t step) const override { return own_->choice(step); }

 private:
  std::unique_ptr<Executable> own_;
  std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
};

class LateBackend final : public Backend {
 public:
  std::string name() const override { return cpu::backend().name(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes, const std::string& what) override {
    return cpu::backend().allocate(bytes, what);
  }
  std::size_t available_bytes() override { return cpu::backend().available_bytes(); }
  void write(std::byte* to, const std::byte* from, std::size_t bytes) override {
    cpu::backend().write(to, from, bytes);
  }
  void read(std::byte* to, const std::byte* from, std::size_t bytes) override {
    cpu::backend().read(to, from, bytes);
  }
  std::size_t status_bytes() const override { return cpu::backend().status_bytes(); }
  std::unique_ptr<Executable> prepare(std::span<const Step> steps, const PrepareOptions& options) override {
    return std::make_unique<LateExecutable>(cpu::backend().prepare(steps, options));
  }
};

}  // namespace

Backend& backend(Device) {
  static LateBackend late;
  return late;
}

namespace {

constexpr std::int64_t context = 4, batch = 2, vocabulary = 7;

struct SmallRun {
  nn::Params params{1};
  nn::Model model{params,
                  {.vocabulary = vocabulary, .context = context, .layers = 1, .heads = 2, .width = 8}};
  optim::AdamW optimizer{params.all()};
};

// Any batch of a step contains a token that does not exist.
TEST(LateResults, AnErrorOfABatchBelongsToItsStep) {
  for (const std::int64_t accumulate : {1, 2, 3}) {
    SmallRun run;
    train::TrainingProgram training(run.model, run.optimizer,
                                    {.batch = batch, .threads = 1, .accumulate = accumulate});
    const std::vector<std::int32_t> good(static_cast<std::size_t>(accumulate * batch * context), 1);
    for (std::size_t at = 0; at < good.size(); at += static_cast<std::size_t>(batch * context)) {
      std::vector<std::int32_t> wrong = good;
      wrong[at] = vocabulary;
      const Pending step = training.start(wrong, good, 1e-2);
      EXPECT_FALSE(step.ready());
      EXPECT_THROW(training.result(step), Error) << "batch at " << at << " of " << accumulate;
      const Pending next = training.start(good, good, 1e-2);
      EXPECT_FALSE(next.ready());
      EXPECT_GT(training.result(next).loss, 0);
      EXPECT_TRUE(next.ready());
    }
  }
}

struct SameBatches : train::Batches {
  void training(std::uint64_t, std::int64_t, Tokens x, Tokens y) const override { fill(x, y); }
  std::int64_t validation_count() const override { return 2; }
  void validation(std::int64_t, std::int64_t, Tokens x, Tokens y) const override { fill(x, y); }
  static void fill(Tokens x, Tokens y) { std::ranges::fill(x, 1), std::ranges::fill(y, 2); }
};

// A step is finished after the next step has started. If a hook reads parameters after the step, it is
// finished immediately.
TEST(LateResults, ATrainerStartsAStepBeforeItReadsThePreviousOne) {
  struct Case {
    std::int64_t steps, validate_every, save_every, stops_after;
    bool traps = false;
  };
  const Case cases[] = {{5, 100, 100, 99}, {7, 3, 100, 99}, {7, 100, 2, 99},         {9, 4, 3, 99},
                        {9, 100, 100, 4},  {9, 2, 100, 5},  {4, 100, 100, 99, true}, {3, 100, 100, 0}};
  for (const Case& c : cases) {
    SCOPED_TRACE("case " + std::to_string(&c - cases));
    SmallRun run;
    const SameBatches batches;
    std::vector<std::string> events;
    std::int64_t asked = 0;
    train::Trainer trainer(
        run.model, run.optimizer, batches,
        {.steps = c.steps,
         .program = {.batch = batch, .threads = 1},
         .validate_every = c.validate_every,
         .save_every = c.save_every,
         .trap_nan = c.traps},
        {.stop =
             [&] {
               events.push_back("asked");
               return ++asked > c.stops_after;
             },
         .step = [&](const auto& row) { events.push_back(std::to_string(row.step)); },
         .validated = [&](const auto& row) { events.push_back("validated " + std::to_string(row.step)); }});
    EXPECT_EQ(trainer.run().step, std::min(c.steps, c.stops_after));
    std::vector<std::string> expected;
    std::int64_t running = 0;  // 0: no step runs
    const auto finish = [&] {
      expected.push_back(std::to_string(running));
      if (running == c.steps || running % c.validate_every == 0)
        expected.push_back("validated " + std::to_string(running));
      running = 0;
    };
    for (std::int64_t step = 1; step <= c.steps; ++step) {
      expected.push_back("asked");
      if (step > c.stops_after) break;
      if (running > 0) finish();
      running = step;
      if (c.traps || step == c.steps || step % c.validate_every == 0 || step % c.save_every == 0) finish();
    }
    if (running > 0) finish();
    EXPECT_EQ(events, expected);
  }
}

// The speed is computed from the time of the steps, without hooks and validations.
TEST(LateResults, ATrainerMeasuresItsSteps) {
  for (const std::int64_t accumulate : {1, 2}) {
    SmallRun run;
    const SameBatches batches;
    std::map<std::int64_t, double> speeds;
    train::Trainer trainer(run.model, run.optimizer, batches,
                           {.steps = 6,
                            .program = {.batch = batch, .threads = 1, .accumulate = accumulate},
                            .validate_every = 4,
                            .validation_batches = 2,
                            .save_every = 100,
                            .validate_first = true},
                           {.stop = [&] { return pass(7000 * second), false; },
                            .step =
                                [&](const train::MetricsRow& row) {
                                  speeds[row.step] = row.tokens_per_s;
                                  pass(1000 * second);
                                },
                            .validated = [&](const train::MetricsRow&) { pass(3000 * second); }});
    shown_time = second;
    trainer.run();
    shown_time = 0;
    // If there are two batches, four programs start: one for each batch, one that stores the gradient sum,
    // and the update.
    const double starting = accumulate == 1 ? 10 : 40, waiting = accumulate == 1 ? 100 : 200;
    for (std::int64_t step = 1; step <= 6; ++step) {
      const bool is_next_started = step != 4 && step != 6;  // a validation follows step 4
      const double seconds =
          static_cast<double>(step + is_next_started) * starting + static_cast<double>(step) * waiting;
      EXPECT_FLOAT_EQ(speeds[step], static_cast<double>(step * accumulate * batch * context) / seconds)
          << step;
    }
    EXPECT_DOUBLE_EQ(trainer.seconds(), 6 * (starting + waiting));
  }
}

}  // namespace
}  // namespace tg
