#include "io/text/char_runs.h"

#include <algorithm>

#include "io/text/unicode.h"

namespace tg::text {
namespace {

constexpr std::size_t no_match = std::string_view::npos;

bool take(std::string_view& rest, std::string_view text) {
  if (!rest.starts_with(text)) return false;
  rest.remove_prefix(text.size());
  return true;
}

// Reads a character between [ and ], possibly escaped by a backslash. Returns nothing for a special
// character.
std::optional<char32_t> take_character(std::string_view& rest) {
  const bool escaped = take(rest, "\\");
  char32_t c = 0;
  const std::size_t length = rest.empty() ? 0 : io::utf8_decode(rest, 0, c);
  if (length == 0) return std::nullopt;
  rest.remove_prefix(length);
  const bool is_alphanumeric =
      c < 0x80 && (char_classes()[c] & (char_class::letter | char_class::number)) != 0;
  if (escaped && is_alphanumeric)
    return c == 'r' ? std::optional(U'\r') : c == 'n' ? std::optional(U'\n') : std::nullopt;
  if (!escaped && std::u32string_view(U"[]^-&").find(c) != std::u32string_view::npos) return std::nullopt;
  return c;
}

}  // namespace

bool CharRuns::parse_category(std::string_view& rest) {
  constexpr std::pair<std::string_view, int> categories[] = {{"\\p{L}", char_class::letter},
                                                             {"\\p{M}", char_class::mark},
                                                             {"\\p{N}", char_class::number},
                                                             {"\\p{P}", char_class::punctuation},
                                                             {"\\p{S}", char_class::symbol}};
  for (const auto& [name, flag] : categories)
    if (take(rest, name)) {
      flags_ |= flag;
      return true;
    }
  return false;
}

bool CharRuns::parse_set(std::string_view& rest) {
  if (!take(rest, "[")) return parse_category(rest);
  while (!take(rest, "]")) {
    if (parse_category(rest)) continue;
    const auto first = take_character(rest);
    if (!first) return false;
    const auto last = take(rest, "-") ? take_character(rest) : first;
    if (!last || *last < *first) return false;
    ranges_.emplace_back(*first, *last);
  }
  return flags_ != 0 || !ranges_.empty();
}

std::optional<CharRuns> CharRuns::parse(const std::string& pattern) {
  CharRuns made;
  made.pattern_ = pattern;
  std::string_view rest = pattern;
  if (rest == "\\s+$") {
    made.only_at_end_ = true;
    return made;
  }
  made.space_before_ = take(rest, "\\s?");
  if (!made.parse_set(rest)) return std::nullopt;
  if (take(rest, "+")) {
    made.most_ = no_match;
  } else if (take(rest, "{1,3}")) {
    made.most_ = 3;
  }
  return rest.empty() ? std::optional(made) : std::nullopt;
}

bool CharRuns::matches_as(const CharRuns& other) const {
  const auto joined = [](auto ranges) {  // merges overlapping or adjacent ranges
    std::sort(ranges.begin(), ranges.end());
    decltype(ranges) all;
    for (const auto& [first, last] : ranges) {
      if (all.empty() || first > all.back().second + 1)
        all.emplace_back(first, last);
      else
        all.back().second = std::max(all.back().second, last);
    }
    return all;
  };
  return only_at_end_ == other.only_at_end_ && space_before_ == other.space_before_ && most_ == other.most_ &&
         flags_ == other.flags_ && joined(ranges_) == joined(other.ranges_);
}

std::size_t CharRuns::match_end(std::string_view text, std::size_t i) const {
  const std::uint8_t* classes = char_classes();
  const auto has = [&](const Char& c) {
    return c.is(flags_) || std::any_of(ranges_.begin(), ranges_.end(), [&](const auto& range) {
             return c.code >= range.first && c.code <= range.second;
           });
  };
  const Char first = char_at(text, i, classes);
  const std::size_t second = i + first.length;
  std::size_t begin = i;
  if (space_before_ && first.is(char_class::space) && second < text.size() &&
      has(char_at(text, second, classes))) {
    begin = second;
  } else if (!has(first)) {
    return no_match;
  }
  for (std::size_t n = 0; n < most_ && begin < text.size(); ++n) {
    const Char c = char_at(text, begin, classes);
    if (!has(c)) break;
    begin += c.length;
  }
  return begin;
}

std::size_t CharRuns::word_end(std::string_view text, std::size_t i) const {
  const std::uint8_t* classes = char_classes();
  if (only_at_end_) {  // white space at the end of the text, or the text before it
    std::size_t spaces = i;
    for (std::size_t at = i; at < text.size();) {
      const Char c = char_at(text, at, classes);
      at += c.length;
      if (!c.is(char_class::space)) spaces = at;
    }
    return spaces == i ? text.size() : spaces;
  }
  if (const std::size_t end = match_end(text, i); end != no_match) return end;
  do {
    i += char_at(text, i, classes).length;
  } while (i < text.size() && match_end(text, i) == no_match);
  return i;
}

}  // namespace tg::text
