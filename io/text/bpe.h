// Byte-level byte-pair encoding [Sennrich, BPE], on bytes as in [Radford, GPT-2]. Tokens 0 … 255 are the
// bytes; token 256 + k is the pair of tokens that merge k joins. Any bytes can be encoded, and are decoded
// unchanged.
#pragma once

#include <utility>

#include <tilegrad/io/text/tokenizer.h>
#include <tilegrad/io/text/words.h>

namespace tg::text {

class Bpe final : public Tokenizer {
 public:
  using Merge = std::pair<std::int32_t, std::int32_t>;

  // Throws FormatError for a merge of tokens that do not exist before it, a duplicate merge, or one of more
  // than max_word_bytes bytes.
  explicit Bpe(std::vector<Merge> merges);

  // Repeatedly joins the most frequent pair of tokens within the words of the text (of equally frequent pairs
  // the one with the smaller ids), until there are `vocabulary` tokens or no pair occurs twice. The result
  // depends on the text alone. Error for a vocabulary below 257 or above max_vocabulary.
  static Bpe train(std::string_view text, std::int64_t vocabulary);
  static constexpr std::int64_t max_vocabulary = 1 << 20;

  const std::vector<Merge>& merges() const { return merges_; }
  std::string_view bytes(std::int32_t id) const;  // of one token; Error for an id outside [0, size)

  std::string_view kind() const override { return "bpe"; }
  std::string_view unit() const override { return "token"; }
  std::int64_t size() const override { return 256 + static_cast<std::int64_t>(merges_.size()); }
  std::vector<std::int32_t> encode(std::string_view text) const override;
  std::string decode(std::span<const std::int32_t> ids) const override;
  io::Metadata metadata() const override;

 private:
  // The token that two make, or −1: a hash table with open addressing, at most half full.
  std::int32_t merged(std::int32_t left, std::int32_t right) const;
  std::size_t slot_of(std::uint64_t pair) const;
  // Writes the tokens of one word to `out`, which has room for its bytes, and returns how many there are.
  std::size_t encode_word(std::string_view word, std::int32_t* out) const;

  struct Slot {
    std::uint64_t pair = empty;
    std::int32_t token = -1;
    static constexpr std::uint64_t empty = ~std::uint64_t{0};
  };
  std::vector<Merge> merges_;
  std::vector<Slot> slots_;
  int shift_ = 0;                    // 64 − log₂ of the number of slots
  std::string bytes_;                // of all tokens, one after the other
  std::vector<std::uint32_t> from_;  // where those of each begin; one more for the end
};

// "116 104\n32 256\n": a merge a line, by ids. Throws FormatError, beginning with `where` and naming the
// line.
std::vector<Bpe::Merge> parse_merges(std::string_view text, const std::string& where);

}  // namespace tg::text
