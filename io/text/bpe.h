// Byte-level byte-pair encoding [Sennrich, BPE], on bytes as in [Radford, GPT-2]. Tokens 0 … 255 are the
// bytes; token 256 + k is the pair of tokens that merge k joins, within the words of GPT-2. Any bytes can be
// encoded, and are decoded unchanged.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/io/text/words.h>

namespace tg::text {

class MergeTable;

class Bpe final : public Tokenizer {
 public:
  using Merge = std::pair<std::int32_t, std::int32_t>;

  // `words` is WordRule::gpt2, or WordRule::bytes for the tokenizer of an older checkpoint. Throws
  // FormatError for a merge of tokens that do not exist before it, a duplicate merge, or one of more than
  // max_word_bytes bytes, and Error for another rule.
  explicit Bpe(std::vector<Merge> merges, WordRule words = WordRule::gpt2);

  // Repeatedly joins the most frequent pair of tokens within the words of the text (of equally frequent pairs
  // the one with the smaller ids) that makes a token of at most max_word_bytes bytes, until there are
  // `vocabulary` tokens or no pair occurs twice. The result depends on the text alone. Error for a vocabulary
  // below 257 or above max_vocabulary. Calls `text_read` after the last use of the text, before the first
  // merge, which takes the time; what it throws ends the training (MappedFile::check).
  static Bpe train(std::string_view text, std::int64_t vocabulary,
                   const std::function<void()>& text_read = {});
  static constexpr std::int64_t max_vocabulary = 1 << 20;

  const std::vector<Merge>& merges() const { return merges_; }
  WordRule words() const { return words_; }
  std::string_view bytes(std::int32_t id) const;  // of one token; Error for an id outside [0, size)

  std::string_view kind() const override { return "bpe"; }
  std::string_view unit() const override { return "token"; }
  std::int64_t size() const override { return 256 + static_cast<std::int64_t>(merges_.size()); }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  io::Metadata metadata() const override;

 private:
  std::vector<Merge> merges_;
  WordRule words_;
  std::shared_ptr<const MergeTable> table_;
  std::string bytes_;                // of all tokens, one after the other
  std::vector<std::uint32_t> from_;  // where those of each begin; one more for the end
};

// "116 104\n32 256\n": a merge a line, by ids. Throws FormatError, beginning with `where` and naming the
// line.
std::vector<Bpe::Merge> parse_merges(std::string_view text, const std::string& where);

}  // namespace tg::text
