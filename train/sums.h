// A synthetic task that needs no data: addition as text. "012+345=7530\n" means 12 + 345 = 357. Both numbers
// have all their digits. The digits of the sum are reversed, in the order of computation, so that each digit
// depends only on earlier tokens.
#pragma once

#include <tilegrad/io/text/text.h>

namespace tg::train {

// Generates batches of the task and checks answers.
class Sums {
 public:
  // Numbers have `digits` digits, 1 to 9, with leading zeros. Batches are [batch, context]. Throws Error if a
  // sum does not fit into a row.
  Sums(std::int64_t digits, std::int64_t batch, std::int64_t context);

  // Returns the number of tokens that the model reads per sum: all except the line break.
  static constexpr std::int64_t tokens(std::int64_t digits) { return 3 * digits + 3; }
  // The tokenizer of the task: digits, '+', '=' and line break.
  const text::Tokenizer& tokenizer() const { return vocab_; }
  // Returns the line for a + b, with the answer and a line break.
  std::string text(std::int64_t a, std::int64_t b) const;
  // Returns the line for a + b up to and including the '='.
  std::string question(std::int64_t a, std::int64_t b) const;

  // Whether a + b is held out. About a tenth of all sums is held out, and the others are for training. The
  // order of a and b does not matter.
  static bool held_out(std::int64_t a, std::int64_t b);

  // Writes a training batch. Each row begins with a sum that is not held out and is padded with line breaks.
  // Row b of the batch is row first_row + b of the step. A row depends only on the seed, the step and its
  // number in the step. Both x and y are [batch, context]. Targets y are the next tokens within the answer
  // and its line break, and −100 elsewhere, which cross_entropy ignores. Throws ShapeError for x or y of a
  // different size.
  void random(std::uint64_t seed, std::uint64_t step, std::int64_t first_row, std::span<std::int32_t> x,
              std::span<std::int32_t> y) const;
  // Writes batch k of the held-out sums, which is always the same.
  void evaluation(std::int64_t k, std::span<std::int32_t> x, std::span<std::int32_t> y) const;
  // Returns the two numbers of held-out sum i, in the order of evaluation().
  std::pair<std::int64_t, std::int64_t> held_out_sum(std::int64_t i) const;

  // Returns the number of answers that are right in every digit. `predicted` [batch, context] is the
  // likeliest token after each position, given the right tokens before it. Greedy generation therefore gives
  // the same right answers.
  std::int64_t right_answers(std::span<const std::int32_t> y, std::span<const std::int64_t> predicted) const;

 private:
  std::pair<std::int64_t, std::int64_t> draw(std::uint64_t key, std::uint64_t number, bool held_out) const;
  void fill(std::uint64_t key, std::uint64_t first_row, bool held_out, std::span<std::int32_t> x,
            std::span<std::int32_t> y) const;

  std::int64_t digits_, below_, batch_, context_;
  text::CharVocab vocab_;
};

}  // namespace tg::train
