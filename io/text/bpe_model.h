// The model of a tokenizer.json: a vocabulary of texts with any ids, merges by rank, what becomes of
// characters that have no token, and the letters in which byte-level models write bytes. io/text/bpe.h is the
// library's own tokenizer, with ids that follow from the merges.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/text/merge_table.h"

namespace tg::text {

// ---- The letters in which GPT-2 writes bytes [Radford, GPT-2], so that its tokens are text: 33-126, 161-172
// and 174-255 are the characters of that number, and the other 68 bytes in order U+0100 … U+0143.

// Bytes in these letters, as UTF-8.
std::string to_byte_letters(std::string_view bytes);

// The bytes of such text; nothing if it has other characters.
std::optional<std::string> from_byte_letters(std::string_view letters);

// ---- The model

class BpeModel {
 public:
  using Entry = std::pair<std::string, std::int32_t>;  // a token's text and its id
  using Merge = std::pair<std::string, std::string>;   // in the order of their ranks

  struct Options {
    bool byte_level = false;     // words are written in the letters of to_byte_letters() first
    bool ignore_merges = false;  // a word that is a token is that token, whether merges lead to it or not
    bool byte_fallback =
        false;  // a character without a token is the tokens <0xNN> of its bytes, if all are there
    std::optional<std::string> unknown = {};  // its token otherwise; without one it is an error
    bool fuse_unknown = false;                // characters that follow each other have one unknown token
  };

  // Throws FormatError for a text or an id that occurs twice, a negative id, an empty text, a merge of texts
  // that are not tokens or whose joined text is none, and an unknown token that is none. Of two merges of the
  // same pair the last one counts.
  BpeModel(std::vector<Entry> vocabulary, const std::vector<Merge>& merges, Options options);

  BpeModel(BpeModel&&) = default;  // not copied: the table of texts refers to the vocabulary

  const Options& options() const { return options_; }
  const std::vector<Entry>& vocabulary() const { return vocabulary_; }  // by id
  const std::vector<Merge>& merges() const { return merges_; }
  std::optional<std::int32_t> find(std::string_view text) const;  // the token that is written like this

  // Replaces `ids` by those of one word, which is not empty. Error for a character that has no token, where
  // there is no unknown token.
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const;

  // A word may be cut before each ▁ that follows another character, and keeps its tokens, but not after these
  // characters: no merge joins what others end with to what ▁ begins. Nothing if that is not so.
  const std::optional<std::vector<std::string>>& kept_before_spaces() const { return kept_before_spaces_; }

 private:
  std::int32_t id_of(std::string_view text) const;  // −1 if it has none
  void find_kept_before_spaces();
  std::int32_t id_of_character(std::string_view character, char32_t code) const;

  Options options_;
  std::vector<Entry> vocabulary_;
  std::vector<Merge> merges_;
  std::unordered_map<std::string_view, std::int32_t> ids_;  // views into vocabulary_
  std::array<std::int32_t, 0x200> character_ids_;           // of the first characters, −1 without a token
  std::array<std::int32_t, 256> byte_ids_;                  // of <0xNN>
  std::int32_t unknown_ = -1;
  MergeTable table_;
  std::optional<std::vector<std::string>> kept_before_spaces_;
};

}  // namespace tg::text
