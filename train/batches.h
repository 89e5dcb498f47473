// The batches on which a model is trained and validated.
#pragma once

#include <cstdint>
#include <span>

#include <tilegrad/core/base/array.h>
#include <tilegrad/io/text/text.h>

namespace tg::train {

// A batch is a function of its number alone, whenever and by whomever it is requested.
class Batches {
 public:
  virtual ~Batches() = default;

  // tokens and targets i32: [rows of a step, context] for training, [batch, context] for validation. A target
  // of −100 is ignored.
  using Tokens = std::span<std::int32_t>;
  virtual void training(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const = 0;
  virtual std::int64_t validation_count() const = 0;  // number of batches that cover the held-out part
  virtual void validation(std::int64_t k, std::int64_t count, Tokens x, Tokens y) const = 0;

  // Questions with right or wrong answers: the number in a validation batch (0 if the task has none), and the
  // number answered correctly by the likeliest tokens, i64 [batch, context].
  virtual std::int64_t answers() const { return 0; }
  virtual std::int64_t right_answers(std::span<const std::int32_t> /* y */,
                                     const Array& /* predicted */) const {
    return 0;
  }
};

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
