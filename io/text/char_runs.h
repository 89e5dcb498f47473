// Regular expressions that match runs of characters of a set, such as \s?[A-Za-z…]+. DeepSeek's first models
// use them to split words.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tg::text {

class CharRuns {
 public:
  // Accepts SET, SET+ and SET{1,3}, each optionally after \s?, and \s+$. SET is \p{L}, \p{M}, \p{N}, \p{P} or
  // \p{S}, or a [ ] of these, of characters and of character ranges. Returns nothing for any other pattern.
  static std::optional<CharRuns> parse(const std::string& pattern);

  const std::string& pattern() const { return pattern_; }

  // Whether both patterns match the same strings. Their sets may be written in any order.
  bool matches_as(const CharRuns& other) const;

  // Returns the end of the match that begins at byte i < text.size(). If no match begins there, returns the
  // start of the next match.
  std::size_t word_end(std::string_view text, std::size_t i) const;

 private:
  std::size_t match_end(std::string_view text, std::size_t i) const;  // npos: no match begins here
  bool parse_set(std::string_view& rest);
  bool parse_category(std::string_view& rest);

  std::string pattern_;
  bool only_at_end_ = false;  // \s+$, for text without line breaks
  bool space_before_ = false;
  std::size_t most_ = 1;
  int flags_ = 0;  // see io/text/unicode.h
  std::vector<std::pair<char32_t, char32_t>> ranges_;
};

}  // namespace tg::text
