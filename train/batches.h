// The batches on which a model is trained and validated.
#pragma once

#include <cstdint>
#include <span>

#include <tilegrad/core/base/array.h>
#include <tilegrad/io/text/text.h>

namespace tg::train {

// A target that cross_entropy ignores by default.
constexpr std::int32_t ignored_target = -100;

// The source of training and validation batches. A batch depends only on the function's arguments, so any
// thread or rank can compute it at any time.
class Batches {
 public:
  virtual ~Batches() = default;

  // Tokens of a batch, row-major.
  using Tokens = std::span<std::int32_t>;
  // Writes the batch of training step `step`, counted from 0: tokens to x and targets to y, each [rows of a
  // step, context]. A target may be ignored_target.
  virtual void training(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const = 0;
  // Returns the number of validation batches that cover the held-out part.
  virtual std::int64_t validation_count() const = 0;
  // Writes validation batch `k` of `count`: tokens to x and targets to y, each [batch, context].
  virtual void validation(std::int64_t k, std::int64_t count, Tokens x, Tokens y) const = 0;

  // Returns the number of answers in a validation batch, for a task whose answers are right or wrong. 0: the
  // task has no such answers.
  virtual std::int64_t answers() const { return 0; }
  // Returns the number of right answers in a validation batch. `predicted` is the likeliest token after each
  // position, i64 [batch, context].
  virtual std::int64_t right_answers(std::span<const std::int32_t> /* y */,
                                     const Array& /* predicted */) const {
    return 0;
  }
};

// Batches of random crops of one long token sequence, whose last tenth is held out.
class TextBatches : public Batches {
 public:
  // A row has `context` tokens. A training step has `step_rows` rows, and a validation batch has `batch`
  // rows. `tokens` must outlive the object. Throws Error if the training or the held-out part is shorter than
  // context + 1.
  TextBatches(const text::TokenView& tokens, std::int64_t step_rows, std::int64_t batch, std::int64_t context)
      : split_(text::split_text(tokens)),
        train_(split_.train, step_rows, context, "the text to train on (nine tenths)"),
        held_out_(split_.validation, batch, context, "the held-out text (the last tenth)") {}

  // Does the same as BatchSampler::random().
  void training(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const override {
    train_.random(seed, static_cast<std::uint64_t>(step), x, y);
  }
  // Does the same as BatchSampler::evaluation_count().
  std::int64_t validation_count() const override { return held_out_.evaluation_count(); }
  // Does the same as BatchSampler::evaluation().
  void validation(std::int64_t k, std::int64_t count, Tokens x, Tokens y) const override {
    held_out_.evaluation(k, count, x, y);
  }
  // The training part and the held-out part.
  const text::TextSplit& split() const { return split_; }

 private:
  text::TextSplit split_;
  text::BatchSampler train_, held_out_;
};

}  // namespace tg::train
