#include "tools/train/data.h"

#include <tilegrad/core/base/error.h>
#include <tilegrad/io/files/file.h>
#include <tilegrad/io/text/bpe.h>
#include <tilegrad/io/text/token_file.h>
#include <tilegrad/train/sums.h>
#include "core/base/hash.h"
#include "tools/train_report.h"

namespace tg {
namespace {

// A token sequence whose last tenth is held out.
class CorpusData final : public BatchedData<train::TextBatches> {
 public:
  // `owner` keeps the memory of `tokens` alive.
  CorpusData(const DataOptions& o, const std::string& path, std::string identity,
             std::shared_ptr<const text::Tokenizer> tokenizer, const text::TokenView& tokens,
             std::shared_ptr<const void> owner)
      : BatchedData(path, std::move(identity), std::move(tokenizer), tokens, o.step_rows, o.batch, o.context),
        owner_(std::move(owner)) {}

  std::string name() const override { return "text"; }
  std::string description() const override {
    const auto count = [](std::size_t n) { return grouped(static_cast<std::int64_t>(n)); };
    const std::string unit(tokenizer_->unit());
    const std::string of = unit == "character" ? " distinct" : " in the vocabulary";
    const text::TextSplit& split = batches_.split();
    return file_ + ": " + count(split.train.size() + split.validation.size()) + " " + unit + "s" +
           (unit == "byte" ? "" : ", " + std::to_string(tokenizer_->size()) + of) + "; " +
           count(split.train.size()) + " to train on, " + count(split.validation.size()) + " held out";
  }

  // The prompt consists of the tokenizer's start tokens and a line break. It is not printed. If the tokenizer
  // cannot encode a line break, the prompt is token 0.
  std::string sample(std::int64_t length, const Extend& extend) const override {
    std::vector<std::int32_t> tokens;
    try {
      tokens = tokenizer_->encode_whole("\n");
    } catch (const Error&) {
    }
    if (tokens.empty()) tokens = {0};
    const std::size_t given = tokens.size();
    extend(tokens, length, 0.8);
    return "sample\n" + tokenizer_->decode(std::span(tokens).subspan(given)) + "\n";
  }

 private:
  std::shared_ptr<const void> owner_;
};

// BPE merges are learned from the training part only. A character vocabulary also includes the characters of
// the held-out part.
std::shared_ptr<const text::Tokenizer> learn_tokenizer(const DataOptions& o, std::string_view text) {
  if (o.tokenizer == "bytes") return std::make_shared<text::ByteTokenizer>();
  if (o.tokenizer == "chars") return std::make_shared<text::CharVocab>(text);
  return std::make_shared<text::Bpe>(text::Bpe::train(text.substr(0, text.size() / 10 * 9), o.vocabulary));
}

// Encodes the documents of a text in the form that the base model expects. Each document starts with the
// tokenizer's start tokens and ends with the model's end token. A text without separators is one document.
std::vector<std::int32_t> encode_documents(const DataOptions& o, std::string_view text) {
  std::vector<std::int32_t> all;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end =
        o.separator.empty() ? text.size() : std::min(text.find(o.separator, at), text.size());
    if (end > at) append_document(*o.base, text.substr(at, end - at), all);
    at = end + o.separator.size();
  }
  return all;
}

std::unique_ptr<TrainData> open_text(const DataOptions& o, const std::optional<SavedData>& saved) {
  const bool is_tuned = o.base != nullptr;
  const std::string text =
      o.tokenizer == "chars" && !is_tuned ? text::load_text(o.text) : io::read_file(o.text, "load_text");
  if (text.empty()) throw Error("[load_text] " + o.text + " is empty");
  const std::string identity = identity_of(text);
  check_same_data(o.text, identity, saved);
  std::shared_ptr<const text::Tokenizer> tokenizer = is_tuned ? o.base->tokenizer
                                                     : saved
                                                         ? text::load_tokenizer(saved->model, saved->where)
                                                         : learn_tokenizer(o, text);
  if (!tokenizer) refuse_without_tokenizer("--text");
  const auto tokens = std::make_shared<const std::vector<std::int32_t>>(is_tuned ? encode_documents(o, text)
                                                                                 : tokenizer->encode(text));
  return std::make_unique<CorpusData>(o, o.text, identity, tokenizer, *tokens, tokens);
}

// Returns the tokenizer of a token file: the tokenizer in the file, or the tokenizer of the base model.
// Throws Error if both exist and differ.
std::shared_ptr<const text::Tokenizer> tokenizer_of(const DataOptions& o,
                                                    const std::shared_ptr<const text::TokenFile>& file) {
  const std::shared_ptr<const text::Tokenizer> its(file, &file->tokenizer());
  if (o.base == nullptr) return its;
  if (its->size() > o.base->config.vocabulary)
    throw Error("[model] " + o.tokens + " has " + std::to_string(its->size()) + " tokens, the model " +
                std::to_string(o.base->config.vocabulary));
  const std::shared_ptr<const text::Tokenizer>& known = o.base->tokenizer;
  if (!known || known->kind() == "numbers") return its;
  if (its->kind() != "numbers" && its->metadata() != known->metadata())
    throw Error("[model] " + o.tokens + " was written with a different tokenizer from the model's");
  return known;
}

std::unique_ptr<TrainData> open_tokens(const DataOptions& o, const std::optional<SavedData>& saved) {
  const std::int64_t vocabulary = o.base != nullptr ? o.base->config.vocabulary : o.vocabulary;
  const auto file = o.plain == "none" ? std::make_shared<const text::TokenFile>(o.tokens)
                                      : std::make_shared<const text::TokenFile>(
                                            o.tokens, o.plain == "u16" ? 2 : 4, vocabulary);
  check_same_data(o.tokens, file->identity(), saved);
  return std::make_unique<CorpusData>(o, o.tokens, file->identity(), tokenizer_of(o, file), file->tokens(),
                                      file);
}

class SumsData final : public TrainData {
 public:
  explicit SumsData(const DataOptions& o)
      : digits_(o.digits),
        batch_(o.batch),
        train_(o.digits, o.step_rows, o.context),
        sums_(o.digits, o.batch, o.context) {}

  const text::Tokenizer& tokenizer() const override { return sums_.tokenizer(); }
  std::string identity() const override { return identity_of("add " + std::to_string(digits_)); }
  std::string name() const override { return "task"; }
  std::string description() const override {
    std::string example = sums_.text(digits_ > 1 ? 12 : 2, 9);
    example.pop_back();
    const std::string below = "1" + std::string(static_cast<std::size_t>(digits_), '0');
    return "sums of numbers below " + below + " as \"" + example + "\", the answer's last digit first; " +
           "a tenth of all sums held out";
  }

  void training(std::uint64_t seed, std::int64_t step, Tokens x, Tokens y) const override {
    train_.random(seed, static_cast<std::uint64_t>(step), 0, x, y);
  }
  std::int64_t validation_count() const override { return (4000 + batch_ - 1) / batch_; }  // 4,000 sums
  void validation(std::int64_t k, std::int64_t, Tokens x, Tokens y) const override {
    sums_.evaluation(k, x, y);
  }
  std::int64_t answers() const override { return batch_; }
  std::int64_t right_answers(std::span<const std::int32_t> y, const Array& predicted) const override {
    return sums_.right_answers(y,
                               {predicted.data<std::int64_t>(), static_cast<std::size_t>(predicted.numel())});
  }

  // Prompts the model with unseen sums, one at a time.
  std::string sample(std::int64_t length, const Extend& extend) const override {
    std::string text = "unseen sums\n";
    for (std::int64_t i = 0;
         i < (length + train::Sums::tokens(digits_) - 1) / train::Sums::tokens(digits_) && i < 10; ++i) {
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
  train::Sums train_, sums_;
};

}  // namespace

void declare_data_options(Args& args, DataOptions& o) {
  args.option("text", "FILE", "UTF-8 text to train on; the last tenth is held out for validation", o.text,
              {.shown = "required without --resume, --examples, --tokens or --task"});
  args.option("examples", "FILE",
              "JSON Lines file to train on instead of a text, with --model. Each line has \"prompt\" and "
              "\"completion\" (only this is learned) or \"text\". The last tenth is held out for validation",
              o.examples, {.shown = "none"});
  args.option("tokens", "FILE",
              "token file to train on instead of a text, written by the tool `tokens`; it is "
              "memory-mapped, and its last tenth is held out for validation",
              o.tokens, {.shown = "none"});
  args.option("separator", "TEXT",
              "string between the documents of --text, with --model; it is replaced by the model's end token",
              o.separator, {.shown = "none: the text is one document"});
  args.option("plain", "KIND",
              "format of a --tokens file without a header: 16-bit (u16) or 32-bit (u32) ids below "
              "--vocabulary; none: the file has a header",
              o.plain, {.choices = {"none", "u16", "u32"}});
  args.option("task", "NAME",
              "generated task to train on instead of a text; add: sums of integers, a tenth of them held out",
              o.task, {.choices = {"none", "add"}});
  args.option("digits", "N", "number of digits of each summand of --task add", o.digits,
              {.min = 1, .max = 9});
  args.option(
      "tokenizer", "KIND",
      "tokenizer of a new model: tokens are characters (UTF-8), bytes, or learned from the text (bpe)",
      o.tokenizer, {.choices = {"chars", "bytes", "bpe"}});
  args.option("vocabulary", "N", "number of tokens in the vocabulary, for --tokenizer bpe or --plain",
              o.vocabulary, {.min = 1, .max = static_cast<double>(text::Bpe::max_vocabulary)});
}

std::string contradiction(const Args& args, const DataOptions& o) {
  const bool task = o.task != "none", file = !o.tokens.empty(), plain = o.plain != "none";
  const int kinds = (o.text.empty() ? 0 : 1) + (o.examples.empty() ? 0 : 1) + file + task;
  if (kinds == 0) return "missing --text FILE (or --examples FILE, or --tokens FILE, or --task add)";
  if (kinds > 1) return "--text, --examples, --tokens and --task: give only one of them";
  if (args.given("resume")) return {};  // other options keep the values of the run
  if (!o.examples.empty() && !args.given("model")) return "--examples requires --model";
  if (args.given("separator") && !args.given("model")) return "--separator requires --model";
  if (args.given("separator") && o.text.empty()) return "--separator requires --text";
  if (o.text.empty() && args.given("tokenizer")) return "--tokenizer requires --text";
  if (!task && args.given("digits")) return "--digits requires --task add";
  if (!file && plain) return "--plain requires --tokens";
  if (args.given("vocabulary") && o.tokenizer != "bpe" && !plain)
    return "--vocabulary requires --tokenizer bpe or --plain";
  if (plain && !args.given("vocabulary") && !args.given("model"))
    return "missing --vocabulary N with --plain";
  if (o.tokenizer == "bpe" && o.vocabulary < 257)
    return "--vocabulary got '" + std::to_string(o.vocabulary) +
           "', expected 257 or more with --tokenizer bpe";
  return {};
}

std::string identity_of(std::string_view content) {
  return xxh3_128({&content, 1});
}

void check_same_data(const std::string& what, const std::string& identity,
                     const std::optional<SavedData>& saved) {
  if (saved && saved->identity != identity)
    throw Error("[resume] " + what + " is not the data of this run: XXH3-128 " + identity + ", expected " +
                saved->identity);
}

std::unique_ptr<TrainData> open_data(const DataOptions& o, const std::optional<SavedData>& saved) {
  if (!o.examples.empty()) return open_examples(o, saved);
  if (!o.tokens.empty()) return open_tokens(o, saved);
  if (o.task == "none") return open_text(o, saved);
  auto sums = std::make_unique<SumsData>(o);
  check_same_data("--task " + o.task, sums->identity(), saved);
  return sums;
}

}  // namespace tg
