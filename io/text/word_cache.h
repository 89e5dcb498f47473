// A cache of words and their tokens for one call of encode(), so that each word is merged once.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/piece_size.h"

namespace tg::text {

class WordCache {
 public:
  // Maximum number of cached words: enough for one document. Further words are merged each time.
  static constexpr std::size_t most = piece_size(1 << 18, 64);

  struct Entry {
    // Position of the word and its tokens in the pools. An entry in use has a length of at least 1.
    std::uint32_t word = 0, length = 0, first = 0, count = 0;
  };

  // Creates a cache for a text of `text_bytes` bytes.
  explicit WordCache(std::size_t text_bytes)
      : entries_(std::bit_ceil(std::clamp<std::size_t>(text_bytes, 16, 1 << 12))) {}

  // Returns the entry of the word. If the word is new, returns an empty entry (length 0); fill() must then be
  // called before the next find().
  Entry& find(std::string_view word) {
    std::size_t i = std::hash<std::string_view>()(word) & (entries_.size() - 1);
    while (entries_[i].length != 0 && !same(entries_[i], word)) i = (i + 1) & (entries_.size() - 1);
    return entries_[i];
  }
  void fill(Entry& entry, std::string_view word, std::span<const std::int32_t> tokens) {
    if (used_ == most || word.size() > longest) return;
    entry = {static_cast<std::uint32_t>(words_.size()), static_cast<std::uint32_t>(word.size()),
             static_cast<std::uint32_t>(tokens_.size()), static_cast<std::uint32_t>(tokens.size())};
    words_ += word;
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    if (2 * ++used_ > entries_.size()) grow();
  }
  std::span<const std::int32_t> tokens(const Entry& entry) const {
    return std::span(tokens_).subspan(entry.first, entry.count);
  }

 private:
  static constexpr std::size_t longest = 1 << 8;  // longer words rarely occur again

  bool same(const Entry& entry, std::string_view word) const {
    return entry.length == word.size() &&
           std::memcmp(words_.data() + entry.word, word.data(), word.size()) == 0;
  }
  void grow() {
    std::vector<Entry> old(2 * entries_.size());
    old.swap(entries_);
    for (const Entry& e : old)
      if (e.length != 0) find({words_.data() + e.word, e.length}) = e;
  }

  std::vector<Entry> entries_;
  std::string words_;
  std::vector<std::int32_t> tokens_;
  std::size_t used_ = 0;
};

}  // namespace tg::text
