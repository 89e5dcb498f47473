// What a model is trained on and validated on, batch by batch.
#pragma once

#include <tilegrad/core/base/array.h>
#include <tilegrad/io/text/text.h>

namespace tg::train {

// Batches are functions of their number alone: whoever asks for them, and when, they are the same.
class Batches {
 public:
  virtual ~Batches() = default;

  // tokens and targets i32: [rows of a step, context] to train on, [batch, context] to validate. A target of
  // −100 does not count.
  using Tokens = std::span<std::int32_t>;
  virtual void training(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const = 0;
  virtual std::int64_t validation_count() const = 0;  // batches that cover all that is held out
  virtual void validation(std::int64_t k, std::int64_t count, Tokens x, Tokens y) const = 0;

  // Questions with answers that are right or wrong: how many a validation batch has, 0 if there are none, and
  // how many of them are answered by the likeliest tokens, i64 [batch, context].
  virtual std::int64_t answers() const { return 0; }
  virtual std::int64_t right_answers(std::span<const std::int32_t> /* y */,
                                     const Array& /* predicted */) const {
    return 0;
  }
};

// A sequence of tokens, its last tenth held out. Looks into `tokens`, which must outlive it.
class TextBatches : public Batches {
 public:
  // `step_rows`: rows of a training step, of which a program takes `batch` at a time. Error when one of the
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
