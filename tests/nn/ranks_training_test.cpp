// Training on several ranks: the bits of one rank, whatever their number, and what all ranks must agree on.
#include "tests/support/ranks.h"

#include <limits>

#include <tilegrad/tilegrad.h>
#include "tests/support/small_gpt.h"

namespace {

using namespace tg;
using tg::testing::small_gpt;

constexpr std::int64_t batch = 2, micro_batches = 4;

// Rows of step `n`, of which some have few targets: batches count differently.
struct StepRows {
  std::vector<std::int32_t> x, y;
  StepRows(std::int64_t n, std::int64_t batches) {
    const std::int64_t context = small_gpt().context, rows = batch * batches;
    for (std::int64_t i = 0; i < rows * context; ++i) {
      const auto character = [&](std::int64_t at) {
        return static_cast<std::int32_t>((at * at + at / 5 + 7 * n) % 13);
      };
      x.push_back(character(i));
      y.push_back(i / context % 3 == 1 && i % context < 11 ? -100 : character(i + 1));
    }
  }
};

struct How {
  const char* name;
  nn::Precision precision = nn::Precision::full;
  const char* optimizer = "adamw";
  double dropout = 0, loss_scale = 0;
  std::int64_t accumulate = micro_batches;
  std::uint64_t steps = 20;
};

std::unique_ptr<optim::Optimizer> optimizer_of(const How& how, const std::vector<Parameter>& params) {
  const auto scale =
      how.loss_scale > 0 ? std::optional(optim::LossScale{.initial = how.loss_scale}) : std::nullopt;
  if (how.optimizer == std::string("sgd"))
    return std::make_unique<optim::Sgd>(params, optim::Sgd::Options{.momentum = 0.9, .loss_scale = scale});
  if (how.optimizer == std::string("muon"))
    return std::make_unique<optim::Muon>(params, optim::Muon::Options{});
  return std::make_unique<optim::AdamW>(params, optim::AdamW::Options{.clip = 0.5, .loss_scale = scale});
}

void append(std::string& bytes, const void* from, std::size_t count) {
  bytes.append(static_cast<const char*>(from), count);
}

// The bytes of all results, parameters and optimizer's state after training.
std::string trained(Communicator& ranks, const How& how) {
  nn::Params params(1);
  const nn::Model model(params, small_gpt(how.dropout));
  const auto optimizer = optimizer_of(how, params.all());
  train::ProgramOptions options{
      .batch = batch, .threads = 1, .precision = how.precision, .accumulate = how.accumulate};
  if (ranks.size() > 1) options.ranks = {std::shared_ptr<void>(), &ranks};
  train::TrainingProgram training(model, *optimizer, options, 5);
  std::string bytes;
  for (std::uint64_t n = 0; n < how.steps; ++n) {
    const StepRows rows(static_cast<std::int64_t>(n), how.accumulate);
    const auto r = training.run(rows.x, rows.y, 1e-2);
    append(bytes, &r.loss, sizeof r.loss);
    append(bytes, &r.grad_norm, sizeof r.grad_norm);
    append(bytes, &r.skipped, sizeof r.skipped);
    append(bytes, &r.overflowed, sizeof r.overflowed);
    if (n + 1 == how.steps && how.loss_scale == 0) {
      EXPECT_EQ(r.skipped, 0);
    }
    if (n + 1 == how.steps && how.loss_scale > 0) {
      EXPECT_GT(r.overflowed, 0);
    }
  }
  std::vector<Parameter> all = params.all();
  for (const Parameter& p : optimizer->state()) all.push_back(p);
  for (const Parameter& p : all) {
    const Array a = p.read();
    append(bytes, a.raw(), static_cast<std::size_t>(a.numel()) * size_of(a.dtype()));
  }
  return bytes;
}

class OnRanks : public ::testing::TestWithParam<How> {};

TEST_P(OnRanks, TheBitsAreThoseOfOneRank) {
  const How& how = GetParam();
  const std::string one = ask_ranks(1, [&](Communicator& ranks) { return trained(ranks, how); })[0];
  ASSERT_GT(one.size(), 1000u);
  for (int n : {2, 4}) {
    const std::vector<std::string> all = ask_ranks(
        n, [&](Communicator& ranks) { return trained(ranks, how); }, 120);
    for (std::size_t r = 0; r < all.size(); ++r) EXPECT_TRUE(all[r] == one) << "rank " << r << " of " << n;
  }
}

const How ways[] = {{"f32"},
                    {"bf16", nn::Precision::bf16},
                    {"dropout", nn::Precision::full, "adamw", 0.2},
                    {"sgd", nn::Precision::bf16, "sgd"},
                    {"muon", nn::Precision::bf16, "muon", 0, 0, micro_batches, 5},
                    {"f16_overflows", nn::Precision::f16, "adamw", 0, 0x1p30},
                    {"eight_batches", nn::Precision::bf16, "adamw", 0.1, 0, 8, 5}};
INSTANTIATE_TEST_SUITE_P(Ways, OnRanks, ::testing::ValuesIn(ways),
                         [](const auto& way) { return std::string(way.param.name); });

// With other numbers of batches ranks agree with each other, though not with one rank in the last bits.
TEST(RanksTraining, SixBatchesOnTwoRanks) {
  const How how{"six", nn::Precision::bf16, "adamw", 0, 0, 6, 5};
  const auto run = [&](Communicator& ranks) { return trained(ranks, how); };
  const std::vector<std::string> two = ask_ranks(2, run);
  EXPECT_TRUE(two[0] == two[1]);
  EXPECT_EQ(two[0].size(), ask_ranks(1, run)[0].size());
}

TEST(RanksTraining, BatchesThatRanksCannotShareAreRefused) {
  const std::vector<RankResult> results = ask_each_rank(2, [](Communicator& ranks) {
    return trained(ranks, {"three", nn::Precision::full, "adamw", 0, 0, 3, 1});
  });
  EXPECT_NE(results[0].text.find("accumulate is 3, expected a multiple of the 2 ranks"), std::string::npos)
      << results[0].text;
}

// A NaN in one rank's part of a step: all skip it, and go on together.
TEST(RanksTraining, AllSkipAStepThatIsNotFiniteOnOne) {
  const std::vector<std::string> after = ask_ranks(2, [](Communicator& ranks) {
    nn::Params params(1);
    const nn::Model model(params, small_gpt());
    const optim::AdamW optimizer(params.all());
    train::TrainingProgram training(
        model, optimizer,
        {.batch = batch, .threads = 1, .accumulate = 2, .ranks = {std::shared_ptr<void>(), &ranks}});
    const StepRows rows(0, 2);
    training.run(rows.x, rows.y, 1e-2);
    std::vector<Array> before;
    for (const Parameter& p : params.all()) before.push_back(p.read());
    Parameter first = params.all()[0];
    const Array good = first.read();
    Array bad = first.read();
    if (ranks.rank() == 1)
      HostView{f32, bad.shape(), bad.raw()}.set(0, std::numeric_limits<double>::infinity());
    first.write(bad);
    const auto r = training.run(rows.x, rows.y, 1e-2);
    EXPECT_EQ(r.skipped, 1);
    first.write(good);
    for (std::size_t i = 0; i < before.size(); ++i)
      EXPECT_TRUE(params.all()[i].read().same_bits(before[i])) << i;
    EXPECT_EQ(training.run(rows.x, rows.y, 1e-2).skipped, 1);
    std::string bytes;
    const Array a = params.all()[1].read();
    append(bytes, a.raw(), static_cast<std::size_t>(a.numel()) * 4);
    return bytes;
  });
  EXPECT_TRUE(after[0] == after[1]);
}

}  // namespace
