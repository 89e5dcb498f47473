// Byte-level byte-pair encoding [Sennrich, BPE], on bytes as in [Radford, GPT-2]. Tokens 0 … 255 are the
// bytes. Merge k joins two tokens to token 256 + k. Merges never cross the boundaries of words. The words are
// GPT-2's. Any byte string can be encoded. Decoding returns the same bytes.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/io/text/words.h>

namespace tg::text {

class MergeTable;

// A byte-level BPE tokenizer. It is immutable; copies share the merge table.
class Bpe final : public Tokenizer {
 public:
  // The two tokens that a merge joins.
  using Merge = std::pair<std::int32_t, std::int32_t>;

  // `words` is WordRule::gpt2, or WordRule::bytes for the tokenizer of an older checkpoint. Throws Error for
  // any other rule. Throws FormatError in these cases:
  // - a merge uses a token that does not exist yet
  // - two merges are equal
  // - a token has more than max_word_bytes bytes
  // - there are more than max_vocabulary tokens
  explicit Bpe(std::vector<Merge> merges, WordRule words = WordRule::gpt2);

  // Trains a tokenizer. Each merge joins the most frequent pair of tokens within words. If pairs are equally
  // frequent, it joins the pair with the smaller ids. A pair is never joined if the new token would have more
  // than max_word_bytes bytes. Training ends when there are `vocabulary` tokens or no pair occurs twice. The
  // result depends only on the text. Calls `text_read` after the last use of the text. The merges follow and
  // need most of the time. An exception from `text_read` ends the training, so it can call MappedFile::check.
  // Throws Error for a vocabulary below 257 or above max_vocabulary.
  static Bpe train(std::string_view text, std::int64_t vocabulary,
                   const std::function<void()>& text_read = {});
  // The largest number of tokens.
  static constexpr std::int64_t max_vocabulary = 1 << 20;

  // The merges, by rank.
  const std::vector<Merge>& merges() const { return merges_; }
  // The rule by which text is split into words.
  WordRule words() const { return words_; }
  // Returns the bytes of one token. Throws Error for an id outside [0, size).
  std::string_view bytes(std::int32_t id) const;

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
  std::vector<std::uint32_t> from_;  // offset of the first byte of each token; one more for the end
};

// Parses merges, one per line as two token ids: "116 104\n32 256\n". Throws FormatError that names the line.
// The message begins with `where`.
std::vector<Bpe::Merge> parse_merges(std::string_view text, const std::string& where);

}  // namespace tg::text
