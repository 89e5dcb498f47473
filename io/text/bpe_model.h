// The model of a tokenizer.json: a vocabulary of strings with arbitrary ids, merges by rank, and options for
// characters without a token. Also the alphabet of byte-level models. In contrast, io/text/bpe.h is
// tilegrad's tokenizer, in which the merges determine the ids.
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

// ---- The alphabet in which GPT-2 writes bytes [Radford, GPT-2], so that its tokens are strings. Bytes
// 33-126, 161-172 and 174-255 are written as the characters with these code points. The other 68 bytes are,
// in order, U+0100 … U+0143.

// Returns bytes in this alphabet, as UTF-8.
std::string to_byte_letters(std::string_view bytes);

// Converts such a string to bytes. Returns nothing if it has other characters.
std::optional<std::string> from_byte_letters(std::string_view letters);

// ---- The model

class BpeModel {
 public:
  using Entry = std::pair<std::string, std::int32_t>;  // string and id of a token
  using Merge = std::pair<std::string, std::string>;   // the two strings; lists are in rank order

  struct Options {
    bool byte_level = false;     // convert words with to_byte_letters() first
    bool ignore_merges = false;  // a word that is a token is encoded without merges
    // A character without a token becomes the tokens <0xNN> of its bytes, if all of them exist.
    bool byte_fallback = false;
    std::optional<std::string> unknown = {};  // token for other characters; without it, they are an error
    bool fuse_unknown = false;                // consecutive unknown characters become one unknown token
  };

  // If a pair has two merges, the last one is used. Throws FormatError in these cases:
  // - a duplicate string or id, a negative id, or an empty string
  // - an unknown token that is not in the vocabulary
  // - a merge if one of its strings or the joined string is not a token
  BpeModel(std::vector<Entry> vocabulary, const std::vector<Merge>& merges, Options options);

  BpeModel(BpeModel&&) = default;  // not copied: ids_ refers to vocabulary_

  const Options& options() const { return options_; }
  const std::vector<Entry>& vocabulary() const { return vocabulary_; }  // sorted by id
  const std::vector<Merge>& merges() const { return merges_; }
  std::optional<std::int32_t> find(std::string_view text) const;  // the token with this string

  // Replaces `ids` with the ids of one nonempty word. Throws Error for a character without a token if there
  // is no unknown token.
  void encode(std::string_view word, std::vector<std::int32_t>& ids) const;

  // The characters after which a word must not be cut before ▁. After any other character except ▁, such a
  // cut does not change the tokens. No merge joins a token that ends with that character to a token that
  // begins with ▁. No value if words must not be cut before ▁ at all.
  const std::optional<std::vector<std::string>>& kept_before_spaces() const { return kept_before_spaces_; }

 private:
  std::int32_t id_of(std::string_view text) const;  // −1 if no token has this string
  void find_kept_before_spaces();
  std::int32_t id_of_character(std::string_view character, char32_t code) const;

  Options options_;
  std::vector<Entry> vocabulary_;
  std::vector<Merge> merges_;
  std::unordered_map<std::string_view, std::int32_t> ids_;  // views into vocabulary_
  std::array<std::int32_t, 0x200> character_ids_;  // ids of the first characters; −1 without a token
  std::array<std::int32_t, 256> byte_ids_;         // ids of <0xNN>
  std::int32_t unknown_ = -1;
  MergeTable table_;
  std::optional<std::vector<std::string>> kept_before_spaces_;
};

}  // namespace tg::text
