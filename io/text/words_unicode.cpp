// Splits text into words by characters. Each rule has a scanner that follows the rule's pattern.
#include <tilegrad/io/text/words.h>

#include <algorithm>

#include <tilegrad/core/base/error.h>
#include "io/text/unicode.h"

namespace tg::text {
namespace {

using namespace char_class;

class WordScanner {
 public:
  explicit WordScanner(std::string_view text) : text_(text), classes_(char_classes()) {}

  std::size_t gpt2(std::size_t i) const {
    if (text_[i] == '\'')
      if (const std::size_t length = contraction(i, false); length > 0) return i + length;
    const std::size_t begin = after_one_space(i);
    const Char c = at(begin);
    if (c.is(letter)) return run(begin, letter);
    if (c.is(number)) return run(begin, number);
    if (!c.is(space)) return run_without(begin, space | letter | number);
    return white_space(i);
  }

  // `letters` is the class of a word's characters: `letter`, with or without marks.
  std::size_t llama3(std::size_t i, std::size_t digits, int letters = letter) const {
    if (text_[i] == '\'')
      if (const std::size_t length = contraction(i, true); length > 0) return i + length;
    const Char c = at(i);
    if (c.is(letters)) return run(i, letters);
    if (c.is(number)) return run(i, number, digits);
    if (!is_line_break(i))
      if (const std::size_t next = i + c.length; next < text_.size() && at(next).is(letters))
        return run(next, letters);
    if (const std::size_t begin = after_one_space(i); !at(begin).is(space | letters | number))
      return line_breaks(run_without(begin, space | letters | number));
    return lines(i);
  }

  std::size_t gpt4o(std::size_t i, std::size_t digits, bool contractions) const {
    const Char c = at(i);
    const std::size_t next = i + c.length;
    const bool may_precede = !is_line_break(i) && !c.is(letter | number) && next < text_.size();
    std::size_t end = may_precede ? capitalized(next) : none;
    if (end == none) end = capitalized(i);
    if (end == none && may_precede) end = capitals(next);
    if (end == none) end = capitals(i);
    if (end != none)
      return contractions && end < text_.size() && text_[end] == '\'' ? end + contraction(end, true) : end;
    if (c.is(number)) return run(i, number, digits);
    const std::size_t begin = after_one_space(i);
    if (at(begin).is(space | letter | number)) return lines(i);
    end = run_without(begin, space | letter | number);
    while (end < text_.size() && (is_line_break(end) || text_[end] == '/')) ++end;
    return end;
  }

  // Text that no alternative matches is a word, which ends at the next match.
  std::size_t deepseek(std::size_t i) const {
    std::size_t end = deepseek_match(i);
    for (std::size_t begin = i; end == none;) {
      begin += at(begin).length;
      if (begin == text_.size() || deepseek_match(begin) != none) end = begin;
    }
    return end;
  }

  // If the character at i has the class, returns the end of its run, which has at most `most` characters.
  // Otherwise returns the start of the next run.
  std::size_t isolated(std::size_t i, int kind, std::size_t most) const {
    return at(i).is(kind) ? run(i, kind, most) : run_without(i, kind);
  }

  std::size_t ideographs(std::size_t i) const {
    const bool first = is_ideograph(at(i).code);
    while (i < text_.size() && is_ideograph(at(i).code) == first) i += at(i).length;
    return i;
  }

  // Returns the position of the ▁ that begins the next word. If `each` is set, this is the next ▁. Otherwise
  // it is the next ▁ that follows a different character.
  std::size_t meta_spaces(std::size_t i, bool each) const {
    const std::string_view mark = "\xe2\x96\x81";
    for (std::size_t from = i + 1;; ++from) {
      from = text_.find(mark, from);
      if (from == std::string_view::npos) return text_.size();
      if (each || from - i < mark.size() || text_.substr(from - mark.size(), mark.size()) != mark)
        return from;
    }
  }

  bool is_cut(std::size_t i) const {
    const auto is_ascii_letter = [&](std::size_t k) { return is_letter_of_ascii(text_[k]); };
    if (text_[i] == ' ') return i + 1 < text_.size() && is_ascii_letter(i - 1) && is_ascii_letter(i + 1);
    if (text_[i - 1] != '\n' || i < 2 || at(i).is(space) || text_[i] == '/') return false;
    std::size_t before = i - 2;
    for (int k = 0; k < 3 && before > 0 && (text_[before] & 0xc0) == 0x80; ++k) --before;
    return !at(before).is(space);
  }

 private:
  static constexpr std::size_t none = std::string_view::npos;

  Char at(std::size_t i) const { return char_at(text_, i, classes_); }
  bool is_line_break(std::size_t i) const { return text_[i] == '\r' || text_[i] == '\n'; }
  static bool is_letter_of_ascii(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

  // Returns the end of the run at i: at most `most` characters that have one of these flags.
  std::size_t run(std::size_t i, int flags, std::size_t most = none) const {
    for (std::size_t n = 0; i < text_.size() && n < most; ++n) {
      const Char c = at(i);
      if (!c.is(flags)) break;
      i += c.length;
    }
    return i;
  }
  // Returns the end of the run at i of characters that have none of these flags.
  std::size_t run_without(std::size_t i, int flags) const {
    while (i < text_.size()) {
      const Char c = at(i);
      if (c.is(flags)) break;
      i += c.length;
    }
    return i;
  }

  // Whether the character is a letter or mark that does not have the `other` case. It can then count as the
  // opposite case.
  bool has_case(const Char& c, int other) const {
    return c.is(letter | mark) && (letter_cases()[c.code] & other) == 0;
  }
  bool can_be_upper(const Char& c) const { return has_case(c, letter_case::lower); }
  bool can_be_lower(const Char& c) const { return has_case(c, letter_case::upper); }
  std::size_t run_of_case(std::size_t i, bool (WordScanner::*is_of)(const Char&) const) const {
    while (i < text_.size()) {
      const Char c = at(i);
      if (!(this->*is_of)(c)) break;
      i += c.length;
    }
    return i;
  }
  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ : the first part is greedy. If no lower-case
  // character follows, the last character of the first part that can have either case belongs to the second
  // part.
  std::size_t capitalized(std::size_t i) const {
    std::size_t either_end = none, k = i;
    while (k < text_.size()) {
      const Char c = at(k);
      if (!can_be_upper(c)) break;
      k += c.length;
      if (can_be_lower(c)) either_end = k;
    }
    const std::size_t end = run_of_case(k, &WordScanner::can_be_lower);
    return end > k ? end : either_end;
  }
  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*
  std::size_t capitals(std::size_t i) const {
    const std::size_t end = run_of_case(i, &WordScanner::can_be_upper);
    return end == i ? none : run_of_case(end, &WordScanner::can_be_lower);
  }

  // Matches " ?" before a character that is not white space.
  std::size_t after_one_space(std::size_t i) const {
    return text_[i] == ' ' && i + 1 < text_.size() && !at(i + 1).is(space) ? i + 1 : i;
  }

  // Returns the length of 's|'t|'re|'ve|'m|'ll|'d at i, or 0. If either_case is set, 's also matches 'ſ
  // (U+017F), a lower-case form of s.
  std::size_t contraction(std::size_t i, bool either_case) const {
    const std::string_view rest = text_.substr(i + 1, 2);
    if (either_case && rest == "\xc5\xbf") return 3;
    char letters[2] = {};
    for (std::size_t k = 0; k < rest.size(); ++k)
      letters[k] =
          either_case && rest[k] >= 'A' && rest[k] <= 'Z' ? static_cast<char>(rest[k] | 0x20) : rest[k];
    const std::string_view two(letters, rest.size());
    if (two == "re" || two == "ve" || two == "ll") return 3;
    return !two.empty() && std::string_view("stmd").find(two[0]) != none ? 2 : 0;
  }

  // [\r\n]*
  std::size_t line_breaks(std::size_t i) const {
    while (i < text_.size() && is_line_break(i)) ++i;
    return i;
  }

  // \s+(?!\S)|\s+ : all white space or, if other text follows, all except its last character.
  std::size_t white_space(std::size_t i) const {
    std::size_t last = i, end = i;
    while (end < text_.size()) {
      const Char c = at(end);
      if (!c.is(space)) return last > i ? last : end;
      last = end;
      end += c.length;
    }
    return end;
  }

  // \s*[\r\n]+|\s+(?!\S)|\s+ : white space up to its last line break.
  std::size_t lines(std::size_t i) const {
    const std::size_t end = run(i, space);
    for (std::size_t k = end; k > i; --k)
      if (is_line_break(k - 1)) return k;
    return white_space(i);
  }

  std::size_t deepseek_match(std::size_t i) const {
    const Char c = at(i);
    const std::size_t next = i + c.length;
    if (c.code < 0x80 && c.is(punctuation | symbol) && next < text_.size() &&
        is_letter_of_ascii(text_[next])) {
      std::size_t end = next;
      while (end < text_.size() && is_letter_of_ascii(text_[end])) ++end;
      return end;
    }
    if (c.is(letter | mark)) return run(i, letter | mark);
    if (!is_line_break(i) && !c.is(punctuation | symbol) && next < text_.size() && at(next).is(letter | mark))
      return run(next, letter | mark);
    if (const std::size_t begin = after_one_space(i); at(begin).is(punctuation | symbol))
      return line_breaks(run(begin, punctuation | symbol));
    return c.is(space) ? lines(i) : none;
  }

  static bool is_ideograph(char32_t c) {
    return (c >= 0x4e00 && c <= 0x9fa5) || (c >= 0x3040 && c <= 0x30ff);
  }

  std::string_view text_;
  const std::uint8_t* classes_;
};

}  // namespace

std::size_t word_end(WordRule rule, std::string_view text, std::size_t i) {
  const WordScanner scan(text);
  constexpr std::size_t any = std::string_view::npos;
  switch (rule) {
    case WordRule::bytes:
      return word_end(text, i);
    case WordRule::gpt2:
      return scan.gpt2(i);
    case WordRule::llama3:
      return scan.llama3(i, 3);
    case WordRule::qwen2:
      return scan.llama3(i, 1);
    case WordRule::qwen35:
      return scan.llama3(i, 1, letter | mark);
    case WordRule::gpt4o:
      return scan.gpt4o(i, 3, true);
    case WordRule::tekken:
      return scan.gpt4o(i, 1, false);
    case WordRule::deepseek_digits:
      return scan.isolated(i, number, 3);
    case WordRule::deepseek_ideographs:
      return scan.ideographs(i);
    case WordRule::deepseek_words:
      return scan.deepseek(i);
    case WordRule::each_digit:
      return scan.isolated(i, numeric, 1);
    case WordRule::digits:
      return scan.isolated(i, numeric, any);
    case WordRule::each_space:
      return scan.meta_spaces(i, true);
    case WordRule::spaces:
      return scan.meta_spaces(i, false);
  }
  throw Error("[words] unknown rule " + std::to_string(static_cast<int>(rule)));
}

std::size_t safe_cut(std::string_view text, std::size_t limit) {
  if (limit >= text.size()) return text.size();
  const WordScanner scan(text);
  std::size_t i = limit;
  while (i > 0 && !scan.is_cut(i)) --i;
  return i;
}

}  // namespace tg::text
