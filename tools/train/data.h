// Training data of tools/train: a text, a token file, a generated task, or examples.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tilegrad/train/batches.h>
#include <tilegrad/train/examples.h>
#include "tools/args.h"
#include "tools/train/base_model.h"

namespace tg {

struct DataOptions {
  std::string text, examples, tokens, plain = "none", task = "none", tokenizer = "chars";
  std::int64_t vocabulary = 1024, digits = 2;
  // The rows of a batch of the program (--batch), the rows of a step (--batch × --accumulate), and --context.
  std::int64_t batch = 12, step_rows = 12, context = 64;
  std::string separator;            // separates the documents of a text
  const BaseModel* base = nullptr;  // the model of --model, with its tokenizer and end token
  // encoded --examples, if their length was needed early; open_data() moves from it
  std::shared_ptr<std::vector<train::Example>> encoded = {};
};

void declare_data_options(Args& args, DataOptions& o);
// Returns a message if valid options contradict each other, otherwise "".
std::string contradiction(const Args& args, const DataOptions& o);

class TrainData : public train::Batches {
 public:
  virtual const text::Tokenizer& tokenizer() const = 0;
  virtual std::string identity() const = 0;  // a hash of the data, which is compared when a run is resumed
  virtual std::string name() const = 0;      // for messages
  virtual std::string description() const = 0;

  // Appends `count` generated tokens to `tokens`, sampled at a temperature.
  using Extend =
      std::function<void(std::vector<std::int32_t>& tokens, std::int64_t count, double temperature)>;
  // Generates about `length` tokens that show what the model has learned.
  virtual std::string sample(std::int64_t length, const Extend& extend) const = 0;
};

// Data that a class of train/ arranges in batches.
template <class Source>
class BatchedData : public TrainData {
 public:
  // `of`: arguments of the source's constructor.
  template <class... Of>
  BatchedData(std::string file, std::string identity, std::shared_ptr<const text::Tokenizer> tokenizer,
              Of&&... of)
      : file_(std::move(file)),
        identity_(std::move(identity)),
        tokenizer_(std::move(tokenizer)),
        batches_(std::forward<Of>(of)...) {}

  const text::Tokenizer& tokenizer() const override { return *tokenizer_; }
  std::string identity() const override { return identity_; }
  void training(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const override {
    batches_.training(seed, step, x, y);
  }
  std::int64_t validation_count() const override { return batches_.validation_count(); }
  void validation(std::int64_t k, std::int64_t count, Tokens x, Tokens y) const override {
    batches_.validation(k, count, x, y);
  }

 protected:
  const std::string file_, identity_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  const Source batches_;
};

// Saved metadata of a resumed run.
struct SavedData {
  std::string identity;
  io::Metadata model;  // from the model file, including the tokenizer
  std::string where;   // path of the model file, for messages
};
// Returns the identity of data with this content.
std::string identity_of(std::string_view content);
void check_same_data(const std::string& what, const std::string& identity,
                     const std::optional<SavedData>& saved);
// Opens the data. Throws Error if a resumed run was started with different data.
std::unique_ptr<TrainData> open_data(const DataOptions& o, const std::optional<SavedData>& saved);

// Encodes the prompts and completions of --examples, one example per row.
std::vector<train::Example> encode_examples(const std::string& file, const BaseModel& base);
// The length of the longest example in tokens.
std::int64_t longest_example(const std::vector<train::Example>& examples);
// Throws the errors of read_examples and ExampleBatches, and Error if a resumed run was started with
// different data.
std::unique_ptr<TrainData> open_examples(const DataOptions& o, const std::optional<SavedData>& saved);

}  // namespace tg
