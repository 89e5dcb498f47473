// Text for language models: loading, a vocabulary of characters, the held-out part, and batches. A batch is a
// pure function of (seed, step), so that resuming a run needs no saved position.
#pragma once

#include <tilegrad/io/text/token_view.h>
#include <tilegrad/io/text/tokenizer.h>

namespace tg::text {

// The content of a UTF-8 text file. Error if it is missing, a directory, unreadable or empty; FormatError
// with the offset of the first bad byte if it is not UTF-8.
std::string load_text(const std::string& path);

// Characters are Unicode code points; ids are their indices in ascending order, so that equal texts give
// equal ids.
class CharVocab final : public Tokenizer {
 public:
  explicit CharVocab(std::string_view text);             // every character of a UTF-8 text
  explicit CharVocab(std::vector<char32_t> characters);  // as saved; sorted here, FormatError for a duplicate
                                                         // or for what is no character

  std::string_view kind() const override { return "chars"; }
  std::string_view unit() const override { return "character"; }
  std::int64_t size() const override { return static_cast<std::int64_t>(characters_.size()); }
  const std::vector<char32_t>& characters() const { return characters_; }  // by id

  // Error with the first character that is not in the vocabulary, and its byte offset.
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  io::Metadata metadata() const override;  // "characters": all of them, by id

 private:
  std::vector<char32_t> characters_;
};

// The last tenth is held out: train is the first ⌊9n/10⌋ tokens. Views into `tokens`.
struct TextSplit {
  TokenView train, validation;
};
TextSplit split_text(const TokenView& tokens);

// Crops of `context` tokens and, for each token, the one that follows it.
class BatchSampler {
 public:
  // `tokens` must outlive the sampler. Error if they are fewer than context + 1; `what` ("training text")
  // names them.
  BatchSampler(const TokenView& tokens, std::int64_t batch, std::int64_t context, std::string_view what);

  std::int64_t batch() const { return batch_; }
  std::int64_t context() const { return context_; }

  // Random crops, drawn with replacement: row r of a step starts at ⌊u·(n − context)⌋, u the 64-bit fraction
  // of Philox block r under (seed, step). The batch is rows first_row, first_row + 1, … That way a step that
  // is split into parts, or shared by several processes, sees the same rows as a whole one. x and y are
  // [batch, context].
  void random(std::uint64_t seed, std::uint64_t step, std::int64_t first_row, std::span<std::int32_t> x,
              std::span<std::int32_t> y) const;
  void random(std::uint64_t seed, std::uint64_t step, std::span<std::int32_t> x,
              std::span<std::int32_t> y) const {
    random(seed, step, 0, x, y);
  }

  // Batch k of `count`: the count·batch crops start evenly spaced from the first possible position to the
  // last.
  void evaluation(std::int64_t k, std::int64_t count, std::span<std::int32_t> x,
                  std::span<std::int32_t> y) const;

  // The smallest count for which evaluation() covers every token of the text.
  std::int64_t evaluation_count() const;

 private:
  void crop(std::int64_t row, std::int64_t start, std::span<std::int32_t> x, std::span<std::int32_t> y) const;
  void check(std::span<const std::int32_t> x, std::span<const std::int32_t> y) const;

  TokenView tokens_;
  std::int64_t batch_, context_;
};

}  // namespace tg::text
