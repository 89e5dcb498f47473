#include "tools/train/data.h"

#include "core/error.h"
#include "core/hash.h"
#include "io/bpe.h"
#include "io/file.h"
#include "io/sums.h"
#include "tools/train_report.h"

namespace tg {
namespace {

std::string sum_of(std::string_view bytes) {
  return xxh3_128({&bytes, 1});
}

void want_same(const std::string& what, const std::string& identity, const std::optional<SavedData>& saved) {
  if (saved && saved->identity != identity)
    throw Error("[resume] " + what + " is not what the run learns: XXH3-128 " + identity + ", wanted " +
                saved->identity);
}

std::string load(const DataOptions& o, const std::optional<SavedData>& saved) {
  std::string text = o.tokenizer == "chars" ? load_text(o.text) : read_file(o.text, "load_text");
  if (text.empty()) throw Error("[load_text] " + o.text + " is empty");
  want_same(o.text, sum_of(text), saved);
  return text;
}

class TextData final : public TrainData {
 public:
  TextData(const DataOptions& o, const std::optional<SavedData>& saved)
      : path_(o.text),
        text_(load(o, saved)),
        tokenizer_(saved ? load_tokenizer(saved->model, saved->where) : learn(o)),
        tokens_(tokenizer_->encode(text_)),
        split_(split_text(tokens_)),
        train_(split_.train, o.batch, o.context, "the text to train on (nine tenths)"),
        held_out_(split_.validation, o.batch, o.context, "the held-out text (the last tenth)") {}

  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  std::string identity() const override { return sum_of(text_); }
  std::string name() const override { return "text"; }
  std::string description() const override {
    const auto count = [](std::size_t n) { return grouped(static_cast<std::int64_t>(n)); };
    const std::string unit(tokenizer_->unit());
    const std::string of = unit == "character" ? " distinct" : unit == "byte" ? "" : " in the vocabulary";
    return path_ + ": " + (unit == "token" ? count(text_.size()) + " bytes, " : "") + count(tokens_.size()) +
           " " + unit + "s" + (of.empty() ? "" : ", " + std::to_string(tokenizer_->size()) + of) + "; " +
           count(split_.train.size()) + " to train on, " + count(split_.validation.size()) + " held out";
  }

  void training_batch(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const override {
    train_.random(seed, static_cast<std::uint64_t>(step), x, y);
  }
  std::int64_t validation_batches() const override { return held_out_.evaluation_count(); }
  void validation_batch(std::int64_t k, std::int64_t count, Tokens x, Tokens y) const override {
    held_out_.evaluation(k, count, x, y);
  }

  // Starts as the text goes on after a line break, if it has one.
  std::string sample(std::int64_t length, const Extend& extend) const override {
    std::vector<std::int32_t> tokens{0};
    if (text_.find('\n') != std::string::npos) tokens = tokenizer_->encode("\n");
    const std::size_t given = tokens.size();
    extend(tokens, length, 0.8);
    return "sample\n" + tokenizer_->decode(std::span(tokens).subspan(given)) + "\n";
  }

 private:
  // From what is trained on, so that nothing is known of what is held out but its characters.
  std::unique_ptr<Tokenizer> learn(const DataOptions& o) const {
    if (o.tokenizer == "bytes") return std::make_unique<ByteTokenizer>();
    if (o.tokenizer == "chars") return std::make_unique<CharVocab>(text_);
    const std::string_view text = text_;
    return std::make_unique<Bpe>(Bpe::train(text.substr(0, text.size() / 10 * 9), o.vocabulary));
  }

  std::string path_, text_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<std::int32_t> tokens_;
  TextSplit split_;
  BatchSampler train_, held_out_;
};

class SumsData final : public TrainData {
 public:
  explicit SumsData(const DataOptions& o)
      : digits_(o.digits), batch_(o.batch), sums_(o.digits, o.batch, o.context) {}

  const Tokenizer& tokenizer() const override { return sums_.tokenizer(); }
  std::string identity() const override { return sum_of("add " + std::to_string(digits_)); }
  std::string name() const override { return "task"; }
  std::string description() const override {
    std::string example = sums_.text(digits_ > 1 ? 12 : 2, 9);
    example.pop_back();
    const std::string below = "1" + std::string(static_cast<std::size_t>(digits_), '0');
    return "sums of numbers below " + below + " as \"" + example + "\", the answer's last digit first; " +
           std::to_string(sums_.in_row()) + " in a row, a tenth of all sums held out";
  }

  void training_batch(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const override {
    sums_.random(seed, static_cast<std::uint64_t>(step), 0, x, y);
  }
  std::int64_t validation_batches() const override {  // 4,000 sums
    return (4000 + answers_in_batch() - 1) / answers_in_batch();
  }
  void validation_batch(std::int64_t k, std::int64_t, Tokens x, Tokens y) const override {
    sums_.evaluation(k, x, y);
  }
  std::int64_t answers_in_batch() const override { return batch_ * sums_.in_row(); }
  std::int64_t right_answers(std::span<const std::int32_t> y, const Array& predicted) const override {
    return sums_.right_answers(y,
                               {predicted.data<std::int64_t>(), static_cast<std::size_t>(predicted.numel())});
  }

  // Unseen sums, each asked by itself.
  std::string sample(std::int64_t length, const Extend& extend) const override {
    std::string text = "unseen sums\n";
    for (std::int64_t i = 0; i < (length + sums_.tokens() - 1) / sums_.tokens() && i < 10; ++i) {
      const auto [a, b] = sums_.held_out_sum(i);
      std::vector<std::int32_t> tokens = tokenizer().encode(sums_.question(a, b));
      extend(tokens, digits_ + 1, 0);
      std::string said = tokenizer().decode(tokens), right = sums_.text(a, b);
      right.pop_back();
      text += "  " + said.substr(0, said.find('\n')) + (said == right ? "\n" : "  wrong: " + right + "\n");
    }
    return text;
  }

 private:
  std::int64_t digits_, batch_;
  Sums sums_;
};

}  // namespace

void declare_data_options(Args& args, DataOptions& o) {
  args.option("text", "FILE", "text to learn; its last tenth is held out", o.text,
              {.shown = "needed, but to resume or with --task"});
  args.option("task", "NAME",
              "instead of a text: add, sums of whole numbers, a tenth of which is never trained on", o.task,
              {.choices = {"none", "add"}});
  args.option("digits", "N", "of the numbers of --task add", o.digits, {.min = 1, .max = 9});
  args.option("tokenizer", "KIND", "tokens are characters (UTF-8), bytes, or learned from the text (bpe)",
              o.tokenizer, {.choices = {"chars", "bytes", "bpe"}});
  args.option("vocabulary", "N", "tokens of --tokenizer bpe", o.vocabulary,
              {.min = 257, .max = static_cast<double>(Bpe::max_vocabulary)});
}

std::string contradiction(const Args& args, const DataOptions& o) {
  const bool task = o.task != "none";
  if (task && args.given("text")) return "--text and --task: wanted one of them";
  if (!task && o.text.empty()) return "missing --text FILE (or --task add)";
  if (task && args.given("tokenizer")) return "--tokenizer is for a text, --task add has its characters";
  if (!task && args.given("digits")) return "--digits is for --task add";
  if (args.given("vocabulary") && o.tokenizer != "bpe") return "--vocabulary is for --tokenizer bpe";
  return {};
}

std::unique_ptr<TrainData> open_data(const DataOptions& o, const std::optional<SavedData>& saved) {
  if (o.task == "none") return std::make_unique<TextData>(o, saved);
  auto sums = std::make_unique<SumsData>(o);
  want_same("--task " + o.task, sums->identity(), saved);
  return sums;
}

}  // namespace tg
