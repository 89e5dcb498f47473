// Regular expressions that match runs of characters of a set, as DeepSeek's first models split words:
// \s?[A-Za-z…]+ and the like.
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
  // Understands SET, SET+ and SET{1,3}, each also behind \s?, and \s+$. SET is \p{L}, \p{M}, \p{N}, \p{P} or
  // \p{S}, or [ ] of these, of characters and of ranges of characters. Nothing for another pattern.
  static std::optional<CharRuns> parse(const std::string& pattern);

  const std::string& pattern() const { return pattern_; }

  // Whether the other one, too, matches the same: sets may be written in any order.
  bool matches_as(const CharRuns& other) const;

  // Where the match that begins at byte i < text.size() ends, or the text up to where the next one begins.
  std::size_t word_end(std::string_view text, std::size_t i) const;

 private:
  std::size_t match_end(std::string_view text, std::size_t i) const;  // npos: no match begins here
  bool parse_set(std::string_view& rest);
  bool parse_category(std::string_view& rest);

  std::string pattern_;
  bool only_at_end_ = false;  // \s+$, where the text has no line break
  bool space_before_ = false;
  std::size_t most_ = 1;
  int flags_ = 0;  // of io/text/unicode.h
  std::vector<std::pair<char32_t, char32_t>> ranges_;
};

}  // namespace tg::text
