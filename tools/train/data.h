// The training data of tools/train: a text, a file of tokens, a generated task, or examples.
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
  // Rows of a program's batch (--batch), rows of a step (times --accumulate), and --context.
  std::int64_t batch = 12, step_rows = 12, context = 64;
  std::string separator;            // between the documents of a text
  const BaseModel* base = nullptr;  // of --from: its tokenizer and the token that ends a document
  // Those of --examples, where their length was asked for; open_data() takes them.
  std::shared_ptr<std::vector<train::Example>> encoded = {};
};

void declare_data_options(Args& args, DataOptions& o);
// What is wrong with a combination of valid options; empty if nothing is.
std::string contradiction(const Args& args, const DataOptions& o);

class TrainData : public train::Batches {
 public:
  virtual const text::Tokenizer& tokenizer() const = 0;
  virtual std::string identity() const = 0;  // equal for equal data; a resumed run compares it
  virtual std::string name() const = 0;      // for messages
  virtual std::string description() const = 0;

  // Appends `count` tokens that the model generates at a temperature to `tokens`.
  using Extend =
      std::function<void(std::vector<std::int32_t>& tokens, std::int64_t count, double temperature)>;
  // Text of about `length` tokens that shows what the model learned.
  virtual std::string sample(std::int64_t length, const Extend& extend) const = 0;
};

// The saved metadata of a resumed run.
struct SavedData {
  std::string identity;
  io::Metadata model;  // of the model's file: has the tokenizer
  std::string where;   // that file, for messages
};
// The identity of data with this content; throws Error if it is not that of the resumed run.
std::string identity_of(std::string_view content);
void check_same_data(const std::string& what, const std::string& identity,
                     const std::optional<SavedData>& saved);
// Opens the data. Throws Error if a resumed run was started with other data.
std::unique_ptr<TrainData> open_data(const DataOptions& o, const std::optional<SavedData>& saved);

// The data of --examples: prompts and what is to follow them, an example in each row.
std::vector<train::Example> encode_examples(const std::string& file, const BaseModel& base);
// The most tokens in a row that one of them needs.
std::int64_t longest_example(const std::vector<train::Example>& examples);
// Throws as read_examples and ExampleBatches, and Error if a resumed run was started with other data.
std::unique_ptr<TrainData> open_examples(const DataOptions& o, const std::optional<SavedData>& saved);

}  // namespace tg
