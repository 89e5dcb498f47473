// Tests the task of adding numbers: the text of rows, the held-out part, and the rule for correct answers.
#include <tilegrad/train/sums.h>

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include <tilegrad/core/base/error.h>
#include "tests/support/files.h"

namespace tg {
namespace {

struct Batch {
  std::vector<std::int32_t> x, y;
  Batch(std::int64_t batch, std::int64_t context)
      : x(static_cast<std::size_t>(batch * context), 5), y(x.size()) {}
};

using Numbers = std::pair<std::int64_t, std::int64_t>;

// Reads the sums of a batch. Checks that each sum is complete and correct, and that only the answer is
// learned.
std::vector<Numbers> read_back(const train::Sums& sums, const Batch& rows, std::int64_t batch,
                               std::int64_t context) {
  std::vector<Numbers> found;
  for (std::int64_t row = 0; row < batch; ++row) {
    const auto at = static_cast<std::size_t>(row * context), n = static_cast<std::size_t>(context);
    const std::string line = sums.tokenizer().decode(std::span(rows.x).subspan(at, n)) + "\n";
    const std::size_t plus = line.find('+'), equals = line.find('='), end = line.find('\n');
    const Numbers numbers(std::stoll(line.substr(0, plus)), std::stoll(line.substr(plus + 1)));
    EXPECT_EQ(line.substr(0, end + 1), sums.text(numbers.first, numbers.second));
    found.push_back(numbers);
    for (std::size_t t = 0; t < n; ++t) {  // the target of token t is the next token
      const bool learned = t >= equals && t < end;
      EXPECT_EQ(rows.y[at + t], learned ? sums.tokenizer().encode(line.substr(t + 1, 1))[0] : -100)
          << row << ", " << t;
      EXPECT_TRUE(t < end || line[t] == '\n') << t;
    }
  }
  return found;
}

TEST(Sums, AnswersStartWithTheLastDigit) {
  const train::Sums sums(3, 1, 64);
  EXPECT_EQ(sums.text(12, 345), "012+345=7530\n");
  EXPECT_EQ(sums.text(999, 999), "999+999=8991\n");
  EXPECT_EQ(sums.question(1, 2), "001+002=");
  EXPECT_EQ(train::Sums::tokens(3) + 1, static_cast<std::int64_t>(sums.text(12, 345).size()));
}

TEST(Sums, HeldOutSumsAreNeverTrainedInEitherOrder) {
  for (const std::int64_t digits : {1, 2, 5}) {
    const train::Sums sums(digits, 8, 20);
    Batch rows(8, 20);
    std::set<Numbers> trained, unseen;
    for (std::uint64_t step = 0; step < 150; ++step) {
      sums.random(1, step, 0, rows.x, rows.y);
      for (const Numbers& n : read_back(sums, rows, 8, 20)) trained.insert(n);
    }
    std::int64_t i = 0;
    for (std::int64_t k = 0; k < 60; ++k) {
      sums.evaluation(k, rows.x, rows.y);
      for (const Numbers& n : read_back(sums, rows, 8, 20)) {
        unseen.insert(n);
        EXPECT_EQ(n, sums.held_out_sum(i++));
      }
    }
    for (const auto& [a, b] : unseen) {
      EXPECT_FALSE(trained.contains({a, b}) || trained.contains({b, a})) << a << " + " << b;
      EXPECT_TRUE(train::Sums::held_out(a, b) && train::Sums::held_out(b, a));
    }
    EXPECT_GT(trained.size(), digits == 1 ? 60u : 900u);
    EXPECT_GT(unseen.size(), digits == 1 ? 3u : 300u);
  }
}

TEST(Sums, OneTenthIsHeldOut) {
  int held_out = 0;
  for (int a = 0; a < 300; ++a)
    for (int b = 0; b < 300; ++b) held_out += train::Sums::held_out(a, b);
  EXPECT_NEAR(held_out / 90000.0, 0.1, 0.01);
}

TEST(Sums, RowsAreAFunctionOfSeedStepAndRow) {
  const train::Sums eight(2, 8, 64), two(2, 2, 64);
  Batch all(8, 64), part(2, 64), other(8, 64);
  eight.random(3, 5, 0, all.x, all.y);
  for (const std::int64_t first : {0, 2, 6}) {
    two.random(3, 5, first, part.x, part.y);
    EXPECT_TRUE(std::equal(part.x.begin(), part.x.end(), all.x.begin() + first * 64));
    EXPECT_TRUE(std::equal(part.y.begin(), part.y.end(), all.y.begin() + first * 64));
  }
  eight.random(3, 6, 0, other.x, other.y);
  EXPECT_NE(other.x, all.x);
  eight.random(4, 5, 0, other.x, other.y);
  EXPECT_NE(other.x, all.x);
}

TEST(Sums, AnswerIsCorrectIfAllDigitsAndItsEndAre) {
  const train::Sums sums(2, 3, 64);
  Batch rows(3, 64);
  sums.evaluation(0, rows.x, rows.y);
  std::vector<std::int64_t> predicted;
  for (const std::int32_t y : rows.y) predicted.push_back(y == -100 ? 7 : y);
  const std::int64_t all = 3;
  EXPECT_EQ(sums.right_answers(rows.y, predicted), all);
  int answers = 0;
  for (std::size_t i = 0; i < predicted.size(); ++i) {
    if (rows.y[i] == -100) continue;
    predicted[i] ^= 1;
    EXPECT_EQ(sums.right_answers(rows.y, predicted), all - 1) << i;
    predicted[i] ^= 1;
    ++answers;
  }
  EXPECT_EQ(answers, all * 4);  // three digits and the line break
}

// A Python program computed the expected numbers. The held-out part and the draws of a seed must never
// change.
TEST(Sums, DrawsMatchPhilox) {
  const struct {
    std::int64_t digits;
    std::vector<Numbers> held_out, drawn;
  } golden[] = {
      {1, {{3, 7}, {2, 7}, {2, 7}, {9, 5}, {1, 0}}, {{0, 9}, {8, 3}, {1, 4}, {4, 7}}},
      {3,
       {{741, 152}, {420, 785}, {576, 666}, {945, 544}, {886, 323}},
       {{74, 975}, {837, 322}, {120, 414}, {481, 745}}},
      {9,
       {{899635457, 270592651},
        {415397849, 273597539},
        {26626139, 828971244},
        {426055884, 383386336},
        {460884774, 575220782}},
       {{74543392, 975102912}, {837850191, 322005551}, {120443577, 414413334}, {481285547, 745348963}}}};
  for (const auto& g : golden) {
    const train::Sums sums(g.digits, 1, 32);
    Batch row(1, 32);
    for (std::int64_t i = 0; i < 5; ++i)
      EXPECT_EQ(sums.held_out_sum(i), g.held_out[static_cast<std::size_t>(i)]);
    const std::int64_t rows[] = {0, 1, 2, (std::int64_t{1} << 32) + 1};
    for (std::size_t i = 0; i < 4; ++i) {
      sums.random(7, (std::uint64_t{1} << 33) + 2, rows[i], row.x, row.y);
      EXPECT_EQ(read_back(sums, row, 1, 32)[0], g.drawn[i]) << g.digits << ", " << i;
    }
  }
}

TEST(Sums, SizesAtTheirLimits) {
  using testing::error_of;
  for (const std::int64_t digits : {1, 9}) {
    const std::int64_t tokens = 3 * digits + 3, most = std::numeric_limits<std::int64_t>::max() / tokens;
    EXPECT_EQ(train::Sums::tokens(digits), tokens);
    EXPECT_EQ(error_of([&] { train::Sums(digits, 1, tokens); }), "no error");
    EXPECT_NE(error_of([&] { train::Sums(digits, 1, tokens - 1); }), "no error");
    EXPECT_EQ(error_of([&] { train::Sums(digits, most, tokens); }), "no error");
    EXPECT_NE(error_of([&] { train::Sums(digits, most + 1, tokens); }), "no error");
    EXPECT_NE(error_of([&] { train::Sums(digits, 0, tokens); }), "no error");
    const train::Sums sums(digits, 1, tokens);
    std::int64_t below = 1;
    for (std::int64_t i = 0; i < digits; ++i) below *= 10;
    const std::string nines(static_cast<std::size_t>(digits), '9'), zeros(nines.size(), '0');
    EXPECT_EQ(sums.question(0, below - 1), zeros + "+" + nines + "=");
    EXPECT_EQ(sums.question(below - 1, 0), nines + "+" + zeros + "=");
    for (const std::int64_t wrong : {std::int64_t{-1}, below}) {
      const std::string expected =
          "[sums] got the number " + std::to_string(wrong) + ", expected 0 to " + std::to_string(below - 1);
      EXPECT_EQ(error_of([&] { sums.question(wrong, 0); }), expected);
      EXPECT_EQ(error_of([&] { sums.text(0, wrong); }), expected);
    }
  }
  const train::Sums sums(1, 2, 6);
  std::vector<std::int32_t> exact(12), more(13), less(11);
  EXPECT_EQ(error_of([&] { sums.random(0, 0, 0, exact, exact); }), "no error");
  for (auto* wrong : {&more, &less}) {
    EXPECT_NE(error_of([&] { sums.random(0, 0, 0, *wrong, exact); }), "no error");
    EXPECT_NE(error_of([&] { sums.evaluation(0, exact, *wrong); }), "no error");
  }
  const std::vector<std::int64_t> predicted(12), fewer(6), odd(7);
  EXPECT_EQ(sums.right_answers(exact, predicted), 0);
  EXPECT_NE(error_of([&] { sums.right_answers(exact, fewer); }), "no error");
  EXPECT_NE(error_of([&] { sums.right_answers(std::vector<std::int32_t>(7), odd); }), "no error");
}

TEST(Sums, InvalidArgumentsAreErrors) {
  EXPECT_THROW(train::Sums(0, 1, 64), Error);
  EXPECT_NO_THROW(train::Sums(3, 1, 12));
  EXPECT_THROW(train::Sums(10, 1, 64), Error);
  EXPECT_THROW(train::Sums(3, 1, 11), Error);
  Batch rows(1, 64);
  EXPECT_THROW(train::Sums(3, 2, 64).random(0, 0, 0, rows.x, rows.y), ShapeError);
}

}  // namespace
}  // namespace tg
