// Tests that training on any number of ranks is bitwise identical to one rank. Also tests values that must be
// the same on all ranks.
#include "tests/support/ranks_training.h"

#include <csignal>
#include <limits>

#include <tilegrad/tilegrad.h>

namespace {

using namespace tg;
using namespace tg::testing;

class OnRanks : public ::testing::TestWithParam<How> {};

TEST_P(OnRanks, BitwiseIdenticalToOneRank) {
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
                    {"eight_batches", nn::Precision::bf16, "adamw", 0.1, 0, 8, 5},
                    {"each_updates_all", nn::Precision::bf16, "adamw", 0, 0, micro_batches, 5, false},
                    {"early_sums", nn::Precision::bf16, "adamw", 0, 0, micro_batches, 5, true, true}};
INSTANTIATE_TEST_SUITE_P(Ways, OnRanks, ::testing::ValuesIn(ways),
                         [](const auto& way) { return std::string(way.param.name); });

// With other numbers of batches, all ranks have the same results. These results differ from the results of
// one rank by rounding.
TEST(RanksTraining, SixBatchesOnTwoRanks) {
  const How how{"six", nn::Precision::bf16, "adamw", 0, 0, 6, 5};
  const auto run = [&](Communicator& ranks) { return trained(ranks, how); };
  const std::vector<std::string> two = ask_ranks(2, run);
  EXPECT_TRUE(two[0] == two[1]);
  EXPECT_EQ(two[0].size(), ask_ranks(1, run)[0].size());
}

TEST(RanksTraining, IndivisibleBatchesAreRejected) {
  const std::vector<RankResult> results = ask_each_rank(2, [](Communicator& ranks) {
    return trained(ranks, {"three", nn::Precision::full, "adamw", 0, 0, 3, 1});
  });
  EXPECT_NE(results[0].text.find("accumulate is 3, expected a multiple of the 2 ranks"), std::string::npos)
      << results[0].text;
}

// If NaN occurs in one rank's part of a step, all ranks must skip the step and continue.
TEST(RanksTraining, AllRanksSkipAStepThatIsNonFiniteOnOne) {
  const std::vector<std::string> after = ask_ranks(2, [](Communicator& ranks) {
    nn::Params params(1);
    const nn::Model model(params, ranks_gpt());
    const optim::AdamW optimizer(params.all());
    train::TrainingProgram training(
        model, optimizer,
        {.batch = rank_batch, .threads = 1, .accumulate = 2, .ranks = {std::shared_ptr<void>(), &ranks}});
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

// Two optimizers with separate parameters have sharded updates. One rank's gradient for the second optimizer
// contains infinity. No rank may change any parameter.
TEST(RanksTraining, OptimizersOfOneLossSkipTheSameSteps) {
  run_ranks(2, [](Communicator& ranks) {
    const std::shared_ptr<Communicator> shared{std::shared_ptr<void>(), &ranks};
    nn::Params params(1);
    const Parameter a = params.create("a", {512, 256}, nn::Init::normal(1)),
                    b = params.create("b", {512, 256}, nn::Init::normal(1));
    Graph g;
    const Tensor c_a = g.input("c_a", a.shape()), c_b = g.input("c_b", b.shape());
    const Tensor loss = sum(g.param(a) * c_a) + sum(g.param(b) * c_b);
    const optim::AdamW first({a}, {.ranks = shared});
    const optim::Sgd second({b}, {.ranks = shared});
    ASSERT_NE(first.shards().list()[0].kind, optim::Shard::Kind::whole);
    const auto u = first.minimize(loss), v = second.minimize(loss);
    std::vector<Assign> assign = u.assign;
    assign.insert(assign.end(), v.assign.begin(), v.assign.end());
    Program program = compile(g, {u.skipped, v.skipped}, {.assign = assign, .threads = 1, .ranks = shared});
    const auto run = [&](float bad) {
      std::vector<float> z(512 * 256, 1);
      const std::vector<float> ones = z;
      if (ranks.rank() == 1) z[7] = bad;
      program.run({{c_a, ones}, {c_b, z}, {u.learning_rate, 0.1}, {v.learning_rate, 0.1}});
    };
    run(1);
    std::vector<Parameter> all{a, b};
    for (const optim::Optimizer* o :
         {static_cast<const optim::Optimizer*>(&first), static_cast<const optim::Optimizer*>(&second)})
      for (const Parameter& p : o->state())
        if (p.name() != "optimizer.skipped") all.push_back(p);
    std::vector<Array> before;
    for (const Parameter& p : all) before.push_back(p.read());
    run(std::numeric_limits<float>::infinity());
    EXPECT_EQ(program.item<float>(u.skipped), 1);
    EXPECT_EQ(program.item<float>(v.skipped), 1);
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(all[i].read().same_bits(before[i])) << all[i].name();
    run(1);
    EXPECT_FALSE(a.read().same_bits(before[0]));
    EXPECT_FALSE(b.read().same_bits(before[1]));
  });
}

std::size_t bytes_of(const std::vector<Parameter>& parameters) {
  std::size_t bytes = 0;
  for (const Parameter& p : parameters) bytes += p.bytes();
  return bytes;
}

// 3 · 16384 elements of the model's parameters are sharded. Each has two moments.
TEST(RanksTraining, EachRankKeepsItsShardsOfTheState) {
  for (const int n : {2, 4})
    run_ranks(n, [&](Communicator& ranks) {
      const std::shared_ptr<Communicator> shared{std::shared_ptr<void>(), &ranks};
      nn::Params params(1);
      const nn::Model model(params, ranks_gpt());
      const optim::AdamW alone(params.all()), divided(params.all(), {.ranks = shared});
      const std::size_t moments = std::size_t{2} * 3 * 16384 * 4;
      EXPECT_EQ(bytes_of(alone.state()) - bytes_of(divided.state()),
                moments - moments / static_cast<std::size_t>(n));
      EXPECT_EQ(bytes_of(divided.whole_state()), bytes_of(alone.state()));
      // A program contains the moments of its own shards. In bf16, it does not contain the f32 weights of
      // other shards.
      for (const nn::Precision precision : {nn::Precision::full, nn::Precision::bf16}) {
        train::ProgramOptions options{
            .batch = rank_batch, .threads = 1, .precision = precision, .accumulate = n};
        options.ranks = shared;
        const train::TrainingProgram one(model, alone, options), part(model, divided, options);
        EXPECT_EQ(one.memory().parameters - part.memory().parameters,
                  moments - moments / static_cast<std::size_t>(n));
      }
    });
}

// Gradients that are summed as soon as they are ready do not wait for the end of the backward pass.
TEST(RanksTraining, EarlySumsNeedLessMemory) {
  run_ranks(4, [](Communicator& ranks) {
    const std::shared_ptr<Communicator> shared{std::shared_ptr<void>(), &ranks};
    nn::Params params(1);
    const nn::Model model(params, {.vocabulary = 13, .context = 16, .layers = 6, .heads = 2, .width = 128});
    const optim::AdamW optimizer(params.all(), {.ranks = shared});
    std::size_t arena[2];
    for (const bool early : {false, true}) {
      const train::TrainingProgram training(
          model, optimizer,
          {.batch = 1, .threads = 1, .accumulate = 4, .ranks = shared, .hoist_collectives = early});
      arena[early] = training.memory().arena;
    }
    // A rank stores a quarter of 6 · 196608 elements in f32. It also stores the elements that are currently
    // exchanged.
    EXPECT_LT(arena[1], arena[0] - 2 * 196608 * 4);
  });
}

// A rank that counts its messages from 0. It is killed before it sends message number `last`.
class Mortal final : public Communicator {
 public:
  Mortal(Communicator& ranks, std::int64_t last)
      : Communicator(ranks.rank(), ranks.size()), ranks_(ranks), last_(last) {}
  void share(std::span<const std::byte> own, const Reader& read) override {
    if (sent_++ == last_) ::raise(SIGKILL);
    ranks_.share(own, read);
  }
  void check_lost() const override { ranks_.check_lost(); }
  std::int64_t sent() const { return sent_; }

 private:
  Communicator& ranks_;
  const std::int64_t last_;
  std::int64_t sent_ = 0;
};

// After each step, the ranks gather the weights once. Before this, a rank does not change other ranks' shards
// of a weight.
TEST(RanksTraining, WeightsOfLowPrecisionCopiesAreCompleteAfterGathering) {
  run_ranks(2, [&](Communicator& ranks) {
    const auto shared = std::make_shared<Mortal>(ranks, -1);
    nn::Params params(1);
    const nn::Model model(params, ranks_gpt());
    const optim::AdamW optimizer(params.all(), {.ranks = shared});
    train::TrainingProgram training(model, optimizer,
                                    {.batch = rank_batch,
                                     .threads = 1,
                                     .precision = nn::Precision::bf16,
                                     .accumulate = 2,
                                     .ranks = shared});
    const auto messages_of_gathering = [&] {
      const std::int64_t before = shared->sent();
      training.gather_weights();
      return shared->sent() - before;
    };
    EXPECT_EQ(messages_of_gathering(), 0) << "before the first step";
    Parameter divided;
    for (const Parameter& p : params.all())
      if (numel(p.shape()) == 16384) divided = p;
    const Array before = divided.read();
    const StepRows rows(0, 2);
    training.run(rows.x, rows.y, 1e-2);
    const auto changed = [&](int half) {
      const Array now = divided.read();
      for (std::int64_t i = half * 8192; i < (half + 1) * 8192; ++i)
        if (now.at(i) != before.at(i)) return true;
      return false;
    };
    EXPECT_TRUE(changed(ranks.rank()));
    EXPECT_FALSE(changed(1 - ranks.rank()));
    EXPECT_GT(messages_of_gathering(), 0);
    EXPECT_TRUE(changed(1 - ranks.rank()));
    EXPECT_EQ(messages_of_gathering(), 0) << "the weights are already gathered";
  });
}

// The parameter "table" is read only through its low-precision copy. Other parameters are also read directly.
// An unused view does not count as a reader.
TEST(RanksTraining, WeightsThatAStepReadsAreCompleteAfterIt) {
  run_ranks(2, [](Communicator& ranks) {
    const std::shared_ptr<Communicator> shared{std::shared_ptr<void>(), &ranks};
    constexpr std::int64_t size = 128;
    nn::Params params(1);
    const Parameter before = params.create("before", {size * size}, nn::Init::normal(0.1));
    const nn::Embedding table(nn::Path(params) / "table", size, size);
    const Parameter after = params.create("after", {size, size}, nn::Init::normal(0.1)),
                    of_table = *params.find("table.weight");
    const nn::LanguageModel model{
        .features =
            [&](TensorArg ids, const nn::CallArgs& call) {
              Graph& g = ids.tensor().graph();
              transpose(g.param(of_table), 0, 1);
              const Tensor x = table(ids, call);
              const Tensor y = matmul(x, cast(reshape(g.param(before), {size, size}), x.dtype()));
              return matmul(y, cast(g.param(after), x.dtype()));
            },
        .context = 4,
        .parameters = params.all()};
    const optim::AdamW optimizer(params.all(), {.ranks = shared});
    train::TrainingProgram training(
        model, optimizer,
        {.batch = 64, .threads = 1, .precision = nn::Precision::bf16, .accumulate = 2, .ranks = shared});
    std::vector<Array> old;
    for (const Parameter& p : params.all()) old.push_back(p.read());
    std::vector<std::int32_t> tokens(2 * 64 * 4);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i % size);
    training.run(tokens, tokens, 1e-2);
    const auto changed = [&](std::size_t i, int half) {
      const Array now = params.all()[i].read();
      const std::int64_t part = now.numel() / 2;
      for (std::int64_t k = half * part; k < (half + 1) * part; ++k)
        if (now.at(k) != old[i].at(k)) return true;
      return false;
    };
    for (std::size_t i = 0; i < params.all().size(); ++i)
      for (const int half : {0, 1})
        EXPECT_EQ(changed(i, half), i != 1 || half == ranks.rank()) << params.all()[i].name() << " " << half;
    training.gather_weights();
    EXPECT_TRUE(changed(1, 0) && changed(1, 1));
  });
}

// If a weight is written, only the low-precision copy of this weight is recomputed. If a weight is sharded,
// each rank casts its own shard.
TEST(RanksTraining, WeightCanBeWrittenBetweenSteps) {
  const auto losses = [](Communicator& ranks) {
    nn::Params params(1);
    const nn::Model model(params, ranks_gpt());
    Parameter positions = params.all()[1];
    positions.freeze();
    const std::shared_ptr<Communicator> shared{std::shared_ptr<void>(), &ranks};
    const optim::AdamW optimizer(params.all(), {.ranks = shared});
    train::TrainingProgram training(model, optimizer,
                                    {.batch = rank_batch,
                                     .threads = 1,
                                     .precision = nn::Precision::bf16,
                                     .accumulate = 4,
                                     .ranks = shared});
    std::string bytes;
    for (std::int64_t n = 0; n < 4; ++n) {
      const StepRows rows(n, 4);
      const float loss = training.run(rows.x, rows.y, 1e-2).loss;
      append(bytes, &loss, sizeof loss);
      positions.write(params.all()[1].read());
    }
    return bytes;
  };
  const std::string one = ask_ranks(1, losses)[0];
  for (const std::string& rank : ask_ranks(2, losses)) EXPECT_TRUE(rank == one);
}

// The state is set from a complete state. Any number of ranks may have written it.
TEST(RanksTraining, StateIsSetFromTheCompleteState) {
  run_ranks(2, [&](Communicator& ranks) {
    nn::Params params(1);
    const nn::Model model(params, ranks_gpt());
    const optim::AdamW optimizer(params.all(), {.ranks = {std::shared_ptr<void>(), &ranks}});
    std::vector<Array> values;
    double next = 0;
    for (const Parameter& p : optimizer.whole_state()) {
      Array a(p.shape(), p.dtype());
      for (std::int64_t i = 0; i < a.numel(); ++i) a.set(i, next++);
      values.push_back(a);
    }
    optimizer.set_state(values);
    const std::vector<Parameter> whole = optimizer.whole_state();
    optimizer.gather_state(whole);
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(whole[i].read().same_bits(values[i])) << i;
  });
}

// Kills a rank at each message, from compilation until the state is gathered for a checkpoint. All other
// ranks must report the loss of the rank.
TEST(RanksTraining, RankKilledAtAnyMessageIsDetected) {
  const How how{"short", nn::Precision::bf16, "adamw", 0, 0, 4, 1};
  for (const int n : {2, 4}) {
    const int killed = n - 1;
    const auto run = [&](std::int64_t last) {
      return ask_each_rank(n, [&, last](Communicator& ranks) {
        Mortal mortal(ranks, ranks.rank() == killed ? last : -1);
        trained(mortal, how);
        return std::to_string(mortal.sent());
      });
    };
    const std::int64_t messages = std::stoll(run(-1)[static_cast<std::size_t>(killed)].text);
    ASSERT_GT(messages, 20);
    for (std::int64_t last = 0; last < messages; ++last) {
      const std::vector<RankResult> results = run(last);
      for (int rank = 0; rank < n; ++rank) {
        const RankResult& r = results[static_cast<std::size_t>(rank)];
        EXPECT_EQ(r.kind, rank == killed ? '?' : 'l')
            << "rank " << rank << " of " << n << ", message " << last << " of " << messages << ": " << r.text;
      }
    }
  }
}

}  // namespace
