// What tools/train learns from: a text, a file of tokens, or a task made of nothing.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <tilegrad/io/training/batches.h>
#include "tools/args.h"

namespace tg {

struct DataOptions {
  std::string text, tokens, plain = "none", task = "none", tokenizer = "chars";
  std::int64_t vocabulary = 1024, digits = 2;
  // Of --batch, and as many times --accumulate, and --context.
  std::int64_t batch = 12, step_rows = 12, context = 64;
};

void declare_data_options(Args& args, DataOptions& o);
// What is wrong with options that are fine one by one; empty if nothing is.
std::string contradiction(const Args& args, const DataOptions& o);

class TrainData : public train::Batches {
 public:
  virtual const text::Tokenizer& tokenizer() const = 0;
  virtual std::string identity() const = 0;  // equal for equal data: what a resumed run compares
  virtual std::string name() const = 0;      // for a person
  virtual std::string description() const = 0;

  // Appends to `tokens` what the model says next: `count` tokens at a temperature.
  using Extend =
      std::function<void(std::vector<std::int32_t>& tokens, std::int64_t count, double temperature)>;
  // A look at what was learned: about `length` tokens.
  virtual std::string sample(std::int64_t length, const Extend& extend) const = 0;
};

// What a resumed run was saved with.
struct SavedData {
  std::string identity;
  io::Metadata model;  // of the model's file: has the tokenizer
  std::string where;   // that file, for messages
};
// Throws Error for data that is not what the resumed run learns, before it looks further.
std::unique_ptr<TrainData> open_data(const DataOptions& o, const std::optional<SavedData>& saved);

}  // namespace tg
