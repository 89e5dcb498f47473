// Batches of a text or of a file of tokens.
#pragma once

#include <tilegrad/io/text/text.h>
#include <tilegrad/train/batches.h>

namespace tg::train {

// A sequence of tokens, its last tenth held out. Looks into `tokens`, which must outlive it.
class TextBatches : public Batches {
 public:
  // `step_rows`: rows of a training step, which a program processes `batch` at a time. Error if one of the
  // parts is shorter than context + 1.
  TextBatches(const text::TokenView& tokens, std::int64_t step_rows, std::int64_t batch, std::int64_t context)
      : split_(text::split_text(tokens)),
        train_(split_.train, step_rows, context, "the text to train on (nine tenths)"),
        held_out_(split_.validation, batch, context, "the held-out text (the last tenth)") {}

  void training(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const override {
    train_.random(seed, static_cast<std::uint64_t>(step), x, y);
  }
  std::int64_t validation_count() const override { return held_out_.evaluation_count(); }
  void validation(std::int64_t k, std::int64_t count, Tokens x, Tokens y) const override {
    held_out_.evaluation(k, count, x, y);
  }
  const text::TextSplit& split() const { return split_; }

 private:
  text::TextSplit split_;
  text::BatchSampler train_, held_out_;
};

}  // namespace tg::train
