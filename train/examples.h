// Batches of separate training examples: a prompt and its completion, or a document.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/train/batches.h>

namespace tg::train {

// One example as text.
struct ExampleText {
  std::string prompt = {};  // context that is not learned; empty for a document
  std::string completion;   // continuation of the prompt, or the document
};

// Reads a file with one JSON object per line, with the strings "prompt" and "completion", or with "text".
// Ignores other keys and empty lines. Throws Error for a file that cannot be read or has no lines, and
// FormatError that names the file, the line and the key.
std::vector<ExampleText> read_examples(const std::string& path);

// One example as tokens.
struct Example {
  std::vector<std::int32_t> tokens = {};  // prompt and completion
  std::size_t given = 0;                  // number of leading tokens that are not learned
};

// Encodes prompt and completion as one document, with the tokenizer's start token, and appends `end`. The
// leading tokens that are equal to tokens of the encoded prompt are not learned. A token that spans prompt
// and completion is learned.
Example encode_example(const ExampleText& text, const text::Tokenizer& tokenizer,
                       std::optional<std::int32_t> end);

// Batches with one example per row, at the start of the row. The rest of the row has no targets and does not
// affect the example. The last tenth of the examples, at least one, is held out. Examples of more than
// context + 1 tokens are truncated. If an example then has no tokens to learn, it is omitted.
class ExampleBatches : public Batches {
 public:
  // A row has `context` tokens. A training step has `step_rows` rows, and a validation batch has `batch`
  // rows. Throws Error for a size that is not positive, and if fewer than 2 examples remain.
  ExampleBatches(std::vector<Example> examples, std::int64_t step_rows, std::int64_t batch,
                 std::int64_t context);
  // Frees the examples.
  ~ExampleBatches() override;

  // Uses each example once per epoch. Each epoch has a new order, which depends on the seed.
  void training(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const override;
  // Returns ⌈held-out examples / batch⌉.
  std::int64_t validation_count() const override;
  // As in Batches; the batches begin at evenly spaced examples. The last batch may have rows without targets.
  void validation(std::int64_t k, std::int64_t count, Tokens x, Tokens y) const override;

  // The examples that are used, truncated.
  const std::vector<Example>& examples() const { return examples_; }
  // The number of held-out examples, which are the last ones of examples().
  std::int64_t held_out() const { return held_out_; }
  // The number of truncated examples.
  std::int64_t cut() const { return cut_; }
  // The number of omitted examples.
  std::int64_t left_out() const { return left_out_; }

 private:
  class Order;
  void fill(const Example& example, Tokens x, Tokens y) const;

  std::vector<Example> examples_;
  std::int64_t step_rows_, batch_, context_, held_out_ = 0, cut_ = 0, left_out_ = 0;
  std::unique_ptr<Order> order_;
};

}  // namespace tg::train
