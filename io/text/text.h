// Text for language models: loading, a character vocabulary, the held-out part, and batches. A batch is a
// pure function of (seed, step), so a resumed run needs no saved position.
#pragma once

#include <tilegrad/io/text/token_view.h>
#include <tilegrad/io/text/tokenizer.h>

namespace tg::text {

// Returns the content of a UTF-8 text file. Throws Error if it is missing, a directory, unreadable or empty.
// Throws FormatError with the offset of the first bad byte if it is not UTF-8.
std::string load_text(const std::string& path);

// A tokenizer whose tokens are Unicode code points. Ids are indices into the sorted list of characters, so
// equal strings give equal ids.
class CharVocab final : public Tokenizer {
 public:
  // Collects every character of `text`. Throws FormatError if it is not UTF-8.
  explicit CharVocab(std::string_view text);
  // Uses the given characters, in any order. Throws FormatError for a duplicate or an invalid code point.
  explicit CharVocab(std::vector<char32_t> characters);

  // Returns "chars".
  std::string_view kind() const override { return "chars"; }
  // Returns "character".
  std::string_view unit() const override { return "character"; }
  // Returns the number of characters.
  std::int64_t size() const override { return static_cast<std::int64_t>(characters_.size()); }
  // The characters, by id.
  const std::vector<char32_t>& characters() const { return characters_; }

  // Throws Error that names the first character outside the vocabulary and its byte offset.
  std::vector<std::int32_t> encode(std::string_view text) const override;
  // Returns UTF-8. Throws Error for an id outside [0, size).
  std::string decode(std::span<const std::int32_t> ids) const override;
  // Contains "characters": all characters in UTF-8, by id.
  io::Metadata metadata() const override;

 private:
  std::vector<char32_t> characters_;
};

// The two parts of split_text(): views into its argument.
struct TextSplit {
  TokenView train, validation;  // first ⌊9n/10⌋ tokens, and the rest
};
// Splits tokens into a training part and a held-out part, the last tenth.
TextSplit split_text(const TokenView& tokens);

// Cuts batches of rows from a token sequence. Each row is a crop of `context` consecutive tokens. The target
// of a token is the next token.
class BatchSampler {
 public:
  // `tokens` must outlive the sampler. Throws Error if there are fewer than context + 1 tokens. In the
  // message, `what` ("training text") is the name of the tokens.
  BatchSampler(const TokenView& tokens, std::int64_t batch, std::int64_t context, std::string_view what);

  // Rows per batch.
  std::int64_t batch() const { return batch_; }
  // Tokens per row.
  std::int64_t context() const { return context_; }

  // Writes a batch of random crops, drawn with replacement, to x and y, both [batch, context]. Row r of a
  // step starts at ⌊u·(n − context)⌋, where n is the number of tokens and u the 64-bit fraction of Philox
  // block r under (seed, step). The batch consists of rows first_row, first_row + 1, …. A step can therefore
  // be split into parts or across processes without changing its rows.
  void random(std::uint64_t seed, std::uint64_t step, std::int64_t first_row, std::span<std::int32_t> x,
              std::span<std::int32_t> y) const;
  // As above, with first_row = 0.
  void random(std::uint64_t seed, std::uint64_t step, std::span<std::int32_t> x,
              std::span<std::int32_t> y) const {
    random(seed, step, 0, x, y);
  }

  // Writes batch k of `count` to x and y, both [batch, context]. The count·batch crops start at evenly spaced
  // positions, from the first to the last possible position.
  void evaluation(std::int64_t k, std::int64_t count, std::span<std::int32_t> x,
                  std::span<std::int32_t> y) const;

  // Returns the smallest count for which evaluation() covers every token.
  std::int64_t evaluation_count() const;

 private:
  void crop(std::int64_t row, std::int64_t start, std::span<std::int32_t> x, std::span<std::int32_t> y) const;
  void check(std::span<const std::int32_t> x, std::span<const std::int32_t> y) const;

  TokenView tokens_;
  std::int64_t batch_, context_;
};

}  // namespace tg::text
