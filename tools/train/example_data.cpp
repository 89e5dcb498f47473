// The training data of train --examples.
#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/train/examples.h>
#include "tools/train/data.h"
#include "tools/train_report.h"

namespace tg {
namespace {

class ExampleData final : public BatchedData<train::ExampleBatches> {
 public:
  ExampleData(const DataOptions& o, std::string identity)
      : BatchedData(o.examples, std::move(identity), o.base->tokenizer,
                    o.encoded ? std::move(*o.encoded) : encode_examples(o.examples, *o.base), o.step_rows,
                    o.batch, o.context),
        end_token_(o.base->end_token) {}

  std::string name() const override { return "examples"; }
  std::string description() const override {
    std::int64_t tokens = 0, learned = 0, longest = 0;
    for (const train::Example& e : batches_.examples()) {
      tokens += std::ssize(e.tokens);
      learned += std::ssize(e.tokens) - std::max<std::int64_t>(1, static_cast<std::int64_t>(e.given));
      longest = std::max<std::int64_t>(longest, std::ssize(e.tokens));
    }
    const std::int64_t n = std::ssize(batches_.examples()), held_out = batches_.held_out();
    std::string s = file_ + ": " + counted(n, "example") + " of up to " + counted(longest, "token") + ", " +
                    grouped(learned) + " of " + counted(tokens, "token") + " to learn; " +
                    grouped(n - held_out) + " to train on, " + grouped(held_out) + " held out";
    if (batches_.cut() > 0) s += "; " + grouped(batches_.cut()) + " are cut to the context";
    if (batches_.left_out() > 0)
      s += "; " + grouped(batches_.left_out()) + " are skipped: their completions begin beyond the context";
    return s;
  }

  // Prints held-out prompts and the model's answers, up to the end token.
  std::string sample(std::int64_t length, const Extend& extend) const override {
    constexpr std::int64_t shown = 3;
    std::string text;
    for (std::int64_t i = 0; i < std::min(shown, batches_.held_out()); ++i) {
      const auto place = static_cast<std::size_t>(std::ssize(batches_.examples()) - batches_.held_out() + i);
      const train::Example& e = batches_.examples()[place];
      const std::size_t given = std::max<std::size_t>(1, e.given);
      std::vector<std::int32_t> tokens(e.tokens.begin(),
                                       e.tokens.begin() + static_cast<std::ptrdiff_t>(given));
      extend(tokens, (length + shown - 1) / shown, 0);
      std::vector<std::int32_t> said(tokens.begin() + static_cast<std::ptrdiff_t>(given), tokens.end());
      if (end_token_) said.erase(std::find(said.begin(), said.end(), *end_token_), said.end());
      tokens.resize(given);
      text += "held-out prompt " + std::to_string(i + 1) + "\n" + tokenizer().decode(tokens) + "⏵" +
              tokenizer().decode(said) + "\n";
    }
    return text;
  }

 private:
  const std::optional<std::int32_t> end_token_;
};

}  // namespace

std::vector<train::Example> encode_examples(const std::string& file, const BaseModel& base) {
  if (!base.tokenizer) refuse_without_tokenizer("--examples");
  std::vector<train::Example> all;
  for (const train::ExampleText& text : train::read_examples(file))
    all.push_back(train::encode_example(text, *base.tokenizer, base.end_token));
  return all;
}

std::int64_t longest_example(const std::vector<train::Example>& examples) {
  std::int64_t most = 1;
  for (const train::Example& e : examples) most = std::max<std::int64_t>(most, std::ssize(e.tokens) - 1);
  return most;
}

std::unique_ptr<TrainData> open_examples(const DataOptions& o, const std::optional<SavedData>& saved) {
  const std::string identity = identity_of(io::read_file(o.examples, "examples"));
  check_same_data(o.examples, identity, saved);
  return std::make_unique<ExampleData>(o, identity);
}

}  // namespace tg
