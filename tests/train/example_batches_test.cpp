// Tests examples with prompts: how a file is read, the tokens that are learned, and the order of batches.
#include <tilegrad/train/examples.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include <tilegrad/core/compile/compile.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/nn/models/model.h>
#include <tilegrad/ops/ops.h>
#include <tilegrad/train/training.h>
#include "tests/support/files.h"

namespace {

using namespace tg;
using tg::testing::error_of;
using tg::testing::TemporaryDirectory;
using Tokens = std::vector<std::int32_t>;

struct ExampleFile : ::testing::Test {
  const TemporaryDirectory dir;
  std::string write(const std::string& text) const {
    std::ofstream(dir / "data.jsonl", std::ios::binary) << text;
    return dir / "data.jsonl";
  }
  std::string refusal(const std::string& text) const {
    return error_of([&] { train::read_examples(write(text)); });
  }
};

TEST_F(ExampleFile, LinesAreParsed) {
  const auto all =
      train::read_examples(write("{\"prompt\": \"2+2=\", \"completion\": \"4\\n\", \"id\": [1, {}]}\r\n"
                                 "\n  \n"
                                 "{\"text\": \"a tree\"}\n"
                                 "{\"completion\": \"b\", \"prompt\": \"\"}"));
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].prompt, "2+2=");
  EXPECT_EQ(all[0].completion, "4\n");
  EXPECT_EQ(all[1].prompt, "");
  EXPECT_EQ(all[1].completion, "a tree");
  EXPECT_EQ(all[2].completion, "b");
}

TEST_F(ExampleFile, ErrorsNameLineAndKey) {
  const std::string good = "{\"text\": \"a\"}\n";
  const struct {
    std::string line, says;
  } bad[] = {{"{\"prompt\": \"a\"}", "has no \"completion\""},
             {"{\"completion\": \"a\"}", "has no \"prompt\""},
             {"{\"question\": \"a\"}", "has no \"text\", and no \"prompt\" and \"completion\""},
             {"{\"prompt\": \"a\", \"completion\": 4}", "\"completion\" is 4, expected a string"},
             {"{\"prompt\": null, \"completion\": \"4\"}", "\"prompt\" is null, expected a string"},
             {"{\"text\": [\"a\"]}", "\"text\" is [\"a\"], expected a string"},
             {"{\"text\": \"a\", \"prompt\": \"b\"}", "has \"text\" and \"prompt\""},
             {"{\"text\": \"a\", \"completion\": \"b\"}", "has \"text\" and \"completion\""},
             {"{\"text\": \"\"}", "\"text\" is empty"},
             {"{\"prompt\": \"a\", \"completion\": \"\"}", "\"completion\" is empty"},
             {"{\"text\": \"a\", \"text\": \"b\"}", "at byte"},
             {"{\"text\": \"a\"", "at byte"},
             {"{\"text\": \"a\"} {}", "at byte"},
             {"[\"a\"]", "at byte"},
             {"a text", "at byte"}};
  for (const auto& b : bad) {
    const std::string says = refusal(good + "\n" + b.line + "\n" + good);
    EXPECT_EQ(says.find("[examples] " + (dir / "data.jsonl") + ", line 3: "), 0u) << says;
    EXPECT_NE(says.find(b.says), std::string::npos) << says;
    EXPECT_EQ(says.find('\n'), std::string::npos) << says;
  }
  EXPECT_NE(refusal(" \n\n").find("data.jsonl has no lines"), std::string::npos);
  EXPECT_NE(error_of([&] { train::read_examples(dir / "nothing"); }).find("nothing: No such file"),
            std::string::npos);
}

TEST(Examples, PromptsAreContextAndTheEndTokenIsLearned) {
  const text::ByteTokenizer bytes;
  const train::Example e = train::encode_example({"ab", "cd"}, bytes, 7);
  EXPECT_EQ(e.tokens, (Tokens{'a', 'b', 'c', 'd', 7}));
  EXPECT_EQ(e.given, 2u);
  EXPECT_EQ(train::encode_example({"", "cd"}, bytes, 7).given, 0u);
  EXPECT_EQ(train::encode_example({"", ""}, bytes, 7).tokens, Tokens{7});
  EXPECT_EQ(train::encode_example({"ab", "ab"}, bytes, {}).given, 2u);
  EXPECT_EQ(train::encode_example({"ab", ""}, bytes, {}).tokens, (Tokens{'a', 'b'}));
  EXPECT_EQ(train::encode_example({"ab", "c"}, bytes, 'c').tokens,
            (Tokens{'a', 'b', 'c'}));  // the end token is not added twice
  // One token contains the end of the prompt and the start of the completion. It is learned.
  const text::Bpe pairs = text::Bpe::train("ab ab ab ab", 257);
  const train::Example joined = train::encode_example({"xa", "b"}, pairs, {});
  EXPECT_EQ(joined.tokens, (Tokens{'x', 256}));
  EXPECT_EQ(joined.given, 1u);
}

std::vector<train::Example> some_examples(std::size_t n) {
  std::vector<train::Example> all;
  for (std::size_t i = 0; i < n; ++i) {
    train::Example e{.given = i % 4};
    for (std::size_t t = 0; t < e.given + 1 + i % 3; ++t)
      e.tokens.push_back(static_cast<std::int32_t>((3 * i + 5 * t + t * t) % 11));
    if (e.given == 0) e.tokens.push_back(static_cast<std::int32_t>(i % 11));
    all.push_back(std::move(e));
  }
  return all;
}

constexpr std::int64_t context = 6;

TEST(Examples, RowHoldsOneExampleWithoutPromptTargets) {
  const train::ExampleBatches batches({{{1, 2, 3, 4}, 2}, {{5, 6, 7}, 0}, {{8, 9}, 1}}, 1, 1, context);
  EXPECT_EQ(batches.held_out(), 1);
  Tokens x(context), y(context);
  std::set<Tokens> rows;
  for (std::int64_t step = 0; step < 2; ++step) {
    batches.training(1, step, x, y);
    rows.insert(x);
    EXPECT_EQ(y, x[0] == 1 ? (Tokens{-100, 3, 4, -100, -100, -100}) : (Tokens{6, 7, -100, -100, -100, -100}));
  }
  EXPECT_EQ(rows, (std::set<Tokens>{{1, 2, 3, 4, 0, 0}, {5, 6, 7, 0, 0, 0}}));
  batches.validation(0, 1, x, y);
  EXPECT_EQ(x, (Tokens{8, 9, 0, 0, 0, 0}));
  EXPECT_EQ(y, (Tokens{9, -100, -100, -100, -100, -100}));
}

TEST(Examples, EachExampleOccursOncePerPass) {
  std::vector<train::Example> all;
  for (std::int32_t i = 0; i < 30; ++i) all.push_back({{i, 1}, 0});
  const std::int64_t rows = 4, trained = 27;
  const train::ExampleBatches batches(all, rows, 2, 1);
  const auto order = [&](std::uint64_t seed, std::int64_t steps) {
    Tokens first;
    for (std::int64_t step = 0; step < steps; ++step) {
      Tokens x(rows), y(rows);
      batches.training(seed, step, x, y);
      first.insert(first.end(), x.begin(), x.end());
    }
    return first;
  };
  const Tokens order_1 = order(1, 27);  // four passes
  std::vector<Tokens> passes;
  for (auto at = order_1.begin(); at != order_1.end(); at += trained) passes.emplace_back(at, at + trained);
  for (const Tokens& pass : passes) {
    const std::set<std::int32_t> seen(pass.begin(), pass.end());
    EXPECT_EQ(std::ssize(seen), trained);
    EXPECT_EQ(*seen.rbegin(), 26);  // the last three are held out
  }
  EXPECT_NE(passes[0], passes[1]);
  EXPECT_NE(order(2, 27), order_1);
  Tokens x(rows), y(rows);  // a batch depends only on its number
  batches.training(1, 9, x, y);
  EXPECT_EQ(x, Tokens(order_1.begin() + 9 * rows, order_1.begin() + 10 * rows));
}

TEST(Examples, ValidationCoversTheHeldOutPart) {
  std::vector<train::Example> all;
  for (std::int32_t i = 0; i < 70; ++i) all.push_back({{i, 1}, 0});
  const train::ExampleBatches batches(all, 3, 3, 1);
  ASSERT_EQ(batches.validation_count(), 3);
  Tokens seen, x(3), y(3);
  for (std::int64_t k = 0; k < 3; ++k) {
    batches.validation(k, 3, x, y);
    for (std::size_t r = 0; r < 3; ++r)
      if (y[r] != -100) seen.push_back(x[r]);
  }
  EXPECT_EQ(seen, (Tokens{63, 64, 65, 66, 67, 68, 69}));
}

// A Python program computed the order of a pass.
TEST(Examples, OrderOfAPassMatchesPhilox) {
  const struct {
    std::uint64_t seed;
    std::int64_t pass;
    Tokens order;
  } golden[] = {{0, 0, {1, 3, 0, 5, 4, 2, 6, 7, 8}},
                {1, 0, {6, 1, 2, 0, 8, 4, 3, 7, 5}},
                {1, 1, {6, 4, 5, 7, 2, 3, 1, 8, 0}},
                {(std::uint64_t{1} << 40) + 5, 3, {6, 3, 7, 5, 8, 0, 1, 4, 2}},
                {1, 0, {6, 1, 2, 0, 8, 4, 3, 7, 5}}};
  std::vector<train::Example> all;
  for (std::int32_t i = 0; i < 10; ++i) all.push_back({{i, 1}, 0});
  const train::ExampleBatches batches(all, 3, 2, 1);
  for (const auto& g : golden) {
    Tokens seen, x(3), y(3);
    for (std::int64_t step = 3 * g.pass; step < 3 * g.pass + 3; ++step) {
      batches.training(g.seed, step, x, y);
      seen.insert(seen.end(), x.begin(), x.end());
    }
    EXPECT_EQ(seen, g.order) << g.seed << ", " << g.pass;
  }
}

// The last tenth of the examples, at least one, is held out. Validation batches are spread over this part.
TEST(Examples, HeldOutPartAndItsBatches) {
  for (const std::size_t n : {2, 3, 10, 19, 20, 29, 30, 101}) {
    std::vector<train::Example> all;
    for (std::size_t i = 0; i < n; ++i) all.push_back({{static_cast<std::int32_t>(i), 1, 2}, 0});
    const auto held = std::max<std::int64_t>(1, static_cast<std::int64_t>(n) / 10);
    for (const std::int64_t rows : {1, 2, 3, 7}) {
      const train::ExampleBatches batches(all, 1, rows, 2);
      EXPECT_EQ(batches.held_out(), held);
      std::int64_t whole = 0;
      while (whole * rows < held) ++whole;
      ASSERT_EQ(batches.validation_count(), whole) << n << ", " << rows;
      for (std::int64_t count = 1; count <= whole; ++count)
        for (std::int64_t k = 0; k < count; ++k) {
          Tokens x(static_cast<std::size_t>(2 * rows)), y(x.size()), expected, targets;
          batches.validation(k, count, x, y);
          for (std::int64_t r = 0; r < rows; ++r) {
            const std::int64_t place = k * whole / count * rows + r;
            const bool is_there = place < held;
            expected.push_back(
                is_there ? static_cast<std::int32_t>(static_cast<std::int64_t>(n) - held + place) : 0);
            expected.push_back(is_there ? 1 : 0);
            targets.push_back(is_there ? 1 : -100);
            targets.push_back(is_there ? 2 : -100);
          }
          EXPECT_EQ(x, expected) << n << ", " << rows << ": " << k << " of " << count;
          EXPECT_EQ(y, targets) << n << ", " << rows << ": " << k << " of " << count;
        }
      Tokens x(static_cast<std::size_t>(2 * rows)), y(x.size()), wrong(x.size() + 1);
      const auto refuses = [&](std::int64_t k, std::int64_t count, Tokens& to_x, Tokens& to_y) {
        return error_of([&] { batches.validation(k, count, to_x, to_y); }) != "no error";
      };
      EXPECT_FALSE(refuses(0, whole, x, y));
      EXPECT_TRUE(refuses(-1, whole, x, y) && refuses(whole, whole, x, y) && refuses(0, whole + 1, x, y));
      EXPECT_TRUE(refuses(0, whole, wrong, y) && refuses(0, whole, x, wrong));
    }
  }
  const train::ExampleBatches batches(some_examples(9), 2, 1, 3);
  Tokens right(6), wrong(7);
  const auto refuses = [&](std::int64_t step, Tokens& x, Tokens& y) {
    return error_of([&] { batches.training(1, step, x, y); }) != "no error";
  };
  EXPECT_FALSE(refuses(0, right, right));
  EXPECT_TRUE(refuses(-1, right, right) && refuses(0, wrong, right) && refuses(0, right, wrong));
  for (const auto& [step_rows, rows, tokens] : {std::tuple(0, 1, 1), {1, 0, 1}, {1, 1, 0}, {-1, 1, 1}})
    EXPECT_EQ(error_of([&, a = step_rows, b = rows, c = tokens] {
                train::ExampleBatches(some_examples(9), a, b, c);
              }).find("[examples] expected positive numbers of rows and tokens, got "),
              0u);
  EXPECT_EQ(error_of([] { train::ExampleBatches(some_examples(9), 1, 1, 1); }), "no error");
}

// The loss of a batch must equal the mean over all learned tokens of its examples. To compute this mean, each
// example runs separately, in a program of its length.
TEST(Examples, BatchedLossMatchesSingleExamples) {
  nn::Params params(4);
  const nn::Model model(
      params, {.vocabulary = 11, .context = context, .layers = 2, .heads = 2, .width = 8, .std = 0.5});
  const std::int64_t rows = 5;
  const train::ExampleBatches batches(some_examples(9), rows, rows, context);
  Tokens x(rows * context), y(x.size());
  batches.training(3, 0, x, y);
  double nats = 0;
  std::int64_t count = 0;
  for (const train::Example& e : batches.examples()) {
    Tokens padded(context, 0);
    std::copy_n(e.tokens.begin(), std::min<std::size_t>(e.tokens.size(), context), padded.begin());
    bool is_there = false;
    for (std::int64_t r = 0; r < rows; ++r)
      is_there |= std::equal(padded.begin(), padded.end(), x.begin() + r * context);
    if (!is_there) continue;
    Graph graph;
    const Tensor tokens = graph.input("tokens", {1, std::ssize(e.tokens)}, i32), logits = model(tokens);
    Program program = compile(graph, {logits});
    program.run({{tokens, e.tokens}});
    const Array all = program.fetch(logits);
    for (std::size_t t = std::max<std::size_t>(1, e.given); t < e.tokens.size(); ++t, ++count) {
      const float* row = all.data<float>() + (t - 1) * 11;
      double sum = 0;
      for (int v = 0; v < 11; ++v) sum += std::exp(double{row[v]});
      nats += std::log(sum) - double{row[e.tokens[t]]};
    }
  }
  EXPECT_EQ(count, std::ranges::count_if(y, [](std::int32_t t) { return t != -100; }));
  train::EvaluationProgram evaluation(model, {.batch = rows, .threads = 1});
  EXPECT_NEAR(evaluation.run(x, y), nats / static_cast<double>(count), 1e-6);
}

TEST(Examples, ExamplesBeyondTheContextAreSkipped) {
  const train::ExampleBatches batches({{{1, 2, 3, 4, 5}, 1}, {{1, 2, 3, 4}, 3}, {{6, 7, 8}, 1}, {{9}, 0}}, 1,
                                      1, 2);
  EXPECT_EQ(batches.cut(), 1);       // truncated to 1 2 3
  EXPECT_EQ(batches.left_out(), 2);  // one example has a prompt of 3 tokens, and one has a single token
  ASSERT_EQ(batches.examples().size(), 2u);
  EXPECT_EQ(batches.examples()[0].tokens, (Tokens{1, 2, 3}));
  EXPECT_NE(
      error_of([] {
        train::ExampleBatches({{{1, 2}, 0}, {{1, 2, 3, 4}, 3}}, 1, 1, 2);
      }).find("2 examples or more, to train on and to hold out, got 1, and 1 that have nothing to learn"),
      std::string::npos);
  EXPECT_THROW(train::ExampleBatches(some_examples(4), 1, 0, 2), Error);
  Tokens x(3), y(2);
  EXPECT_THROW(batches.training(1, 0, x, y), ShapeError);
  EXPECT_THROW(batches.validation(1, 1, y, y), ShapeError);
}

}  // namespace
