// Tests how ranks compare their programs by one hash per step (core/compile/agreement.cpp). Checks the data
// in each hash, and the step and rank in the error message. The test simulates the other ranks.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>

#include <tilegrad/ops/ranks.h>
#include <tilegrad/tilegrad.h>
#include "core/compile/bind.h"
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;

using Words = std::vector<std::uint64_t>;

// Simulates the communicator of the last rank. `others` changes the words of each other rank.
class Played : public Communicator {
 public:
  explicit Played(int ranks, std::function<void(int, Words&)> others = {})
      : Communicator(ranks - 1, ranks), others_(std::move(others)) {}
  void share(std::span<const std::byte> own, const Reader& read) override {
    Words words(own.size() / sizeof(std::uint64_t));
    std::memcpy(words.data(), own.data(), own.size());
    shown.push_back(words);
    std::vector<Words> all(static_cast<std::size_t>(size()), words);
    for (int r = 0; r + 1 < size(); ++r)
      if (others_) others_(r, all[static_cast<std::size_t>(r)]);
    std::vector<const std::byte*> bytes;
    for (const Words& w : all) bytes.push_back(reinterpret_cast<const std::byte*>(w.data()));
    read(bytes);
  }
  std::vector<Words> shown;

 private:
  std::function<void(int, Words&)> others_;
};

using Record = std::function<Tensor(Graph&)>;

// Returns the hashes of the steps, compiled without fusion.
Words hashes(const Record& record) {
  Graph g;
  const Tensor y = record(g);
  const auto ranks = std::make_shared<Played>(2);
  compile(g, {y}, {.threads = 1, .fuse = false, .ranks = ranks});
  EXPECT_EQ(ranks->shown.size(), 2u);
  EXPECT_EQ(ranks->shown[0], Words{ranks->shown[1].size()}) << "the number of steps first";
  return ranks->shown[1];
}

TEST(Agreement, HashesDependOnOpsAttributesAndOperands) {
  const std::vector<Record> all{[](Graph& g) {
                                  return exp(g.input("x", {4, 6}));
                                },
                                [](Graph& g) {
                                  return tanh(g.input("x", {4, 6}));
                                },  // a different op
                                [](Graph& g) {
                                  return exp(g.input("x", {6, 4}));
                                },  // a different shape
                                [](Graph& g) {
                                  return exp(g.input("x", {4, 6}, f64));
                                },  // a different dtype
                                [](Graph& g) {
                                  return exp(transpose(g.input("x", {6, 4}), 0, 1));
                                },  // different strides
                                [](Graph& g) {
                                  return softmax(g.input("x", {4, 4}), 0);
                                },
                                [](Graph& g) {
                                  return softmax(g.input("x", {4, 4}), 1);
                                },  // a different attribute
                                [](Graph& g) {
                                  return concat({g.input("x", {4, 6})});
                                },
                                [](Graph& g) {
                                  return concat({g.input("x", {4, 3}), g.input("y", {4, 3})}, 1);
                                }};  // more operands
  std::vector<Words> each;
  for (const Record& record : all) each.push_back(hashes(record));
  for (std::size_t i = 0; i < each.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(each[i], each[j]) << i << " and " << j;
  const Words again = hashes([](Graph& g) {
    const Scope scope("elsewhere");
    g.input("unused", {3});
    return exp(g.input("another name", {4, 6}));
  });
  EXPECT_EQ(again, each[0]) << "names do not matter";
  // Each step has a different hash.
  const Words chain = hashes([](Graph& g) { return tanh(exp(exp(g.input("x", {4, 6})))); });
  ASSERT_EQ(chain.size(), 3u);
  EXPECT_EQ(chain[0], each[0][0]);
  EXPECT_EQ(chain[1], each[0][0]);
  EXPECT_EQ(chain[2], each[1][0]);
}

TEST(Agreement, TheFirstStepThatDiffersIsReported) {
  const auto message = [](int size, const std::function<void(int, Words&)>& others) {
    Graph g;
    const Scope layer("layer");
    Tensor x = g.input("x", {4});
    for (int n = 0; n < 5; ++n) x = n % 2 ? exp(x) : tanh(x);
    return error_of([&] {
      compile(g, {x}, {.threads = 1, .fuse = false, .ranks = std::make_shared<Played>(size, others)});
    });
  };
  EXPECT_EQ(message(3, {}), "no error");
  const auto change = [](int rank, std::size_t step) {
    return [=](int r, Words& words) {
      if (r == rank && words.size() > 1) ++words[step];
    };
  };
  // All ranks are compared with rank 0. If rank 0 differs, it differs from all other ranks. The error then
  // names the last rank.
  for (const auto& [rank, step, named] : {std::tuple{1, 0, 1}, {1, 4, 1}, {2, 3, 2}, {0, 2, 3}}) {
    const std::string error = message(4, change(rank, static_cast<std::size_t>(step)));
    const std::string expected = "[compile] the programs of ranks 0 and " + std::to_string(named) +
                                 " differ in step " + std::to_string(step) + ", which is layer/" +
                                 (step % 2 ? "exp" : "tanh") +
                                 " on rank 3: all ranks must compile the same program (agreement_test.cpp:";
    EXPECT_EQ(error.substr(0, expected.size()), expected);
  }
  const auto count = [&](std::uint64_t steps) {
    return message(3, [=](int r, Words& words) {
      if (r == 1 && words.size() == 1) words[0] = steps;
    });
  };
  EXPECT_EQ(count(3),
            "[compile] the programs of the ranks have 3 to 5 steps: all ranks must compile the same program");
  EXPECT_EQ(count(6),
            "[compile] the programs of the ranks have 5 to 6 steps: all ranks must compile the same program");
  EXPECT_EQ(count(5), "no error");
}

// A message has at most Communicator::most_shared bytes. No message is empty. The last message ends with the
// last step of the shortest program.
TEST(Agreement, LongProgramsAreComparedInPieces) {
  constexpr std::size_t most = Communicator::most_shared / sizeof(std::uint64_t);
  Graph g;
  const Program program = compile(g, {exp(g.input("x", {4}))}, {.threads = 1});
  ASSERT_EQ(program.steps().size(), 1u);
  const auto compare = [&](std::size_t count, const std::function<void(int, Words&)>& others = {}) {
    const std::vector<Step> steps(count, program.steps()[0]);
    Played ranks(2, others);
    const std::string error = error_of([&] { check_ranks(steps, &ranks, false); });
    std::vector<std::size_t> sizes;
    for (const Words& words : ranks.shown) sizes.push_back(words.size());
    return std::pair(sizes, error.substr(0, error.find(", which is")));
  };
  using Sizes = std::vector<std::size_t>;
  EXPECT_EQ(compare(0), std::pair(Sizes{1}, std::string("no error")));
  EXPECT_EQ(compare(most), std::pair(Sizes{1, most}, std::string("no error")));
  EXPECT_EQ(compare(most + 2), std::pair(Sizes{1, most, 2}, std::string("no error")));
  const std::string first = std::to_string(most), second = std::to_string(most + 1),
                    last = std::to_string(most + 3);
  const auto differs_in_second_piece = [](int, Words& words) {
    if (words.size() == 2) ++words[1];
  };
  EXPECT_EQ(compare(most + 2, differs_in_second_piece),
            std::pair(Sizes{1, most, 2}, "[compile] the programs of ranks 0 and 1 differ in step " + second));
  for (const auto& [shortest, sizes] : {std::pair{first, Sizes{1, most}}, {second, Sizes{1, most, 1}}}) {
    const auto is_shorter = [steps = std::stoull(shortest)](int, Words& words) {
      if (words.size() == 1 && words[0] == most + 3) words[0] = steps;
    };
    EXPECT_EQ(compare(most + 3, is_shorter),
              std::pair(sizes, "[compile] the programs of the ranks have " + shortest + " to " + last +
                                   " steps: all ranks must compile the same program"));
  }
}

TEST(Agreement, CollectivesNeedACommunicatorOfTheirSize) {
  Graph g;
  const Tensor y = all_reduce({g.input("x", {4})}, 2)[0];
  const auto message = [&](CompileOptions options) {
    options.threads = 1;
    return error_of([&] { compile(g, {y}, options); });
  };
  const std::string of = "[all_reduce] is for 2 ranks, but compile got ";
  EXPECT_EQ(message({}).find(of + "no communicator (CompileOptions::ranks) (agreement_test.cpp:"), 0u);
  EXPECT_EQ(
      message({.ranks = std::make_shared<Played>(3)}).find(of + "a communicator of 3 (agreement_test.cpp:"),
      0u);
  EXPECT_EQ(message({.plan_only = true}), "no error");
  EXPECT_NE(message({.ranks = std::make_shared<Played>(3), .plan_only = true}), "no error");
  const auto two = std::make_shared<Played>(2);
  EXPECT_EQ(message({.ranks = two, .plan_only = true}), "no error");
  EXPECT_TRUE(two->shown.empty()) << "a plan is not compared";
}

}  // namespace
