// A generated task, for a machine without data: sums as text. "012+345=7530\n" means 12 + 345 = 357: both
// numbers with all their digits, and the digits of the sum in reverse, the order in which they are computed,
// so that each digit depends only on what precedes it.
#pragma once

#include <tilegrad/io/text/text.h>

namespace tg::train {

class Sums {
 public:
  // Numbers below 10^digits, 1 to 9 digits; rows of `context` tokens. Error if a sum does not fit in a row.
  Sums(std::int64_t digits, std::int64_t batch, std::int64_t context);

  // Tokens that the model reads of a sum: all except its line break.
  static constexpr std::int64_t tokens(std::int64_t digits) { return 3 * digits + 3; }
  const text::Tokenizer& tokenizer() const { return vocab_; }
  std::string text(std::int64_t a, std::int64_t b) const;
  // Tokens before the answer, including the '='.
  std::string question(std::int64_t a, std::int64_t b) const;

  // A tenth of all sums is held out, whichever of the two numbers comes first; the rest is trained on.
  static bool held_out(std::int64_t a, std::int64_t b);

  // Rows that begin with a sum that is not held out, with line breaks after it. They are a function of (seed,
  // step, row), where row b of the batch is row first_row + b of the step. x and y are [batch, context]; y is
  // the next token if it belongs to the answer or ends it, else −100, which cross_entropy ignores.
  void random(std::uint64_t seed, std::uint64_t step, std::int64_t first_row, std::span<std::int32_t> x,
              std::span<std::int32_t> y) const;
  // Batch k of the held-out sums, always the same.
  void evaluation(std::int64_t k, std::span<std::int32_t> x, std::span<std::int32_t> y) const;
  // The numbers of held-out sum i, as evaluation() lists them.
  std::pair<std::int64_t, std::int64_t> held_out_sum(std::int64_t i) const;

  // The number of a batch's answers that are right in every digit: `predicted` [batch, context] is the
  // likeliest token after each position. An answer counted as right is also the one that the model would
  // generate by itself.
  std::int64_t right_answers(std::span<const std::int32_t> y, std::span<const std::int64_t> predicted) const;

 private:
  std::pair<std::int64_t, std::int64_t> draw(std::uint64_t key, std::uint64_t number, bool held_out) const;
  void fill(std::uint64_t key, std::uint64_t first_row, bool held_out, std::span<std::int32_t> x,
            std::span<std::int32_t> y) const;

  std::int64_t digits_, below_, batch_, context_;
  text::CharVocab vocab_;
};

}  // namespace tg::train
