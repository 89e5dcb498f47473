// Sums as a task: the text of rows, the held-out part, and which answers count as right.
#include <tilegrad/io/training/sums.h>

#include <gtest/gtest.h>

#include <set>

#include <tilegrad/core/base/error.h>

namespace tg {
namespace {

struct Batch {
  std::vector<std::int32_t> x, y;
  Batch(std::int64_t batch, std::int64_t context)
      : x(static_cast<std::size_t>(batch * context)), y(x.size()) {}
};

using Numbers = std::pair<std::int64_t, std::int64_t>;

// The sums of a batch, each checked: written in full, right, and learned where its answer is.
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
    for (std::size_t t = 0; t < n; ++t) {  // the target of token t is the one after it
      const bool learned = t >= equals && t < end;
      EXPECT_EQ(rows.y[at + t], learned ? sums.tokenizer().encode(line.substr(t + 1, 1))[0] : -100)
          << row << ", " << t;
      EXPECT_TRUE(t < end || line[t] == '\n') << t;
    }
  }
  return found;
}

TEST(Sums, AreWrittenWithTheLastDigitOfTheAnswerFirst) {
  const train::Sums sums(3, 1, 64);
  EXPECT_EQ(sums.text(12, 345), "012+345=7530\n");
  EXPECT_EQ(sums.text(999, 999), "999+999=8991\n");
  EXPECT_EQ(sums.question(1, 2), "001+002=");
  EXPECT_EQ(train::Sums::tokens(3) + 1, static_cast<std::int64_t>(sums.text(12, 345).size()));
}

TEST(Sums, NoneThatIsHeldOutIsTrainedOnInEitherOrder) {
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

TEST(Sums, ATenthIsHeldOut) {
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

TEST(Sums, AnAnswerIsRightWhenEveryDigitAndItsEndAre) {
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

TEST(Sums, WhatCannotBeIsAnError) {
  EXPECT_THROW(train::Sums(0, 1, 64), Error);
  EXPECT_NO_THROW(train::Sums(3, 1, 12));
  EXPECT_THROW(train::Sums(10, 1, 64), Error);
  EXPECT_THROW(train::Sums(3, 1, 11), Error);
  Batch rows(1, 64);
  EXPECT_THROW(train::Sums(3, 2, 64).random(0, 0, 0, rows.x, rows.y), ShapeError);
}

}  // namespace
}  // namespace tg
