// Examples to learn from, each by itself: a prompt and what is to follow it, or a text.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/train/batches.h>

namespace tg::train {

struct ExampleText {
  std::string prompt = {};  // is read, but not learned; empty for a text
  std::string completion;   // what follows it, or the text
};

// The lines of a file, each a JSON object with the strings "prompt" and "completion", or with "text"; other
// keys are ignored, and so are empty lines. Throws Error for a file that cannot be read or has no lines, and
// FormatError that names the file, the line and the key.
std::vector<ExampleText> read_examples(const std::string& path);

struct Example {
  std::vector<std::int32_t> tokens = {};
  std::size_t given = 0;  // so many of them, from the first, are not learned
};

// The tokens of prompt and completion as one text, as the tokenizer begins one, and `end` behind them. Those
// that the prompt alone has, too, are given; a token across the border is learned.
Example encode_example(const ExampleText& text, const text::Tokenizer& tokenizer,
                       std::optional<std::int32_t> end);

// Batches with an example in each row, from its first token on; what is behind it in the row is no target,
// and changes nothing before it. The last tenth of the examples, at least one, is held out. Of an example
// that is longer than context + 1 tokens the rest is left out; one of which then nothing is to be learned is
// left out as a whole.
class ExampleBatches : public Batches {
 public:
  // `step_rows`: rows of a training step, which a program processes `batch` at a time. Error for sizes that
  // are not positive, and if fewer than 2 examples remain.
  ExampleBatches(std::vector<Example> examples, std::int64_t step_rows, std::int64_t batch,
                 std::int64_t context);
  ~ExampleBatches() override;

  // Each example once before any comes again, in another order each time, which depends on the seed.
  void training(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const override;
  std::int64_t validation_count() const override;
  // Batch k of `count`: rows from evenly spaced places on. The last one may have rows without targets.
  void validation(std::int64_t k, std::int64_t count, Tokens x, Tokens y) const override;

  const std::vector<Example>& examples() const { return examples_; }
  std::int64_t held_out() const { return held_out_; }  // of them, the last ones
  std::int64_t cut() const { return cut_; }            // examples of which a part is left out
  std::int64_t left_out() const { return left_out_; }  // examples that are left out as a whole

 private:
  class Order;
  void fill(const Example& example, Tokens x, Tokens y) const;

  std::vector<Example> examples_;
  std::int64_t step_rows_, batch_, context_, held_out_ = 0, cut_ = 0, left_out_ = 0;
  std::unique_ptr<Order> order_;
};

}  // namespace tg::train
