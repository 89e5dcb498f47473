// Splits random strings into words. If a rule has a regular expression, compares the words with its matches,
// which a small backtracking engine finds. Compares other rules with plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include <tilegrad/io/files/json.h>
#include <tilegrad/io/text/words.h>
#include "io/text/char_runs.h"
#include "io/text/hf_stages.h"
#include "tests/support/plain_letters.h"

namespace tg {
namespace {

using testing::Letter;
using testing::Letters;
using testing::letters_of;
using testing::random_text;
using text::WordRule;

// ---- Regular expressions: alternatives, sequences, and sets and groups with quantifiers, matched by
// backtracking

struct Item {
  std::vector<std::function<bool(const Letter&)>> any_of;  // a set
  bool is_negated = false, ignores_case = false, is_not_ahead = false;
  std::vector<std::vector<Item>> group;
  std::size_t least = 1, most = 1;

  bool has(const Letter& l) const {
    bool found = false;
    for (const auto& test : any_of) found = found || test(l);
    return found != is_negated;
  }
};
using Pattern = std::vector<std::vector<Item>>;

class Parser {
 public:
  explicit Parser(std::string_view text) : letters_(letters_of(text)) {}
  Pattern pattern() {
    Pattern all(1);
    while (at_ < letters_.size() && now() != ')') {
      if (now() == '|') {
        ++at_, all.emplace_back();
        continue;
      }
      all.back().push_back(item());
      quantify(all.back().back());
    }
    return all;
  }

 private:
  char32_t now() const { return letters_.at(at_).code; }
  bool take(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i)
      if (at_ + i >= letters_.size() || letters_[at_ + i].code != static_cast<unsigned char>(text[i]))
        return false;
    at_ += text.size();
    return true;
  }
  static std::function<bool(const Letter&)> flag(int any_of) {
    return [=](const Letter& l) { return (l.flags & any_of) != 0; };
  }
  std::function<bool(const Letter&)> escaped() {  // after the backslash
    using namespace text;
    if (take("s")) return flag(char_class::space);
    if (take("S")) return [](const Letter& l) { return (l.flags & char_class::space) == 0; };
    if (take("r")) return [](const Letter& l) { return l.code == '\r'; };
    if (take("n")) return [](const Letter& l) { return l.code == '\n'; };
    const auto with_case = [](bool (*is)(int)) {
      return [=](const Letter& l) { return (l.flags & char_class::letter) != 0 && is(l.cases); };
    };
    if (take("p{Lu}") || take("p{Lt}")) return with_case([](int c) { return c == letter_case::upper; });
    if (take("p{Ll}")) return with_case([](int c) { return c == letter_case::lower; });
    if (take("p{Lm}") || take("p{Lo}")) return with_case([](int c) { return c == 0; });
    for (const auto& [name, any_of] : {std::pair{"p{L}", char_class::letter},
                                       {"p{M}", char_class::mark},
                                       {"p{N}", char_class::number},
                                       {"p{P}", char_class::punctuation},
                                       {"p{S}", char_class::symbol}})
      if (take(name)) return flag(any_of);
    const char32_t c = letters_.at(at_++).code;
    return [=](const Letter& l) { return l.code == c; };
  }
  Item item() {
    Item made;
    if (take("(?!")) {
      made.is_not_ahead = true, made.group = pattern();
      EXPECT_TRUE(take(")"));
    } else if (take("(?i:")) {
      const bool before = std::exchange(ignores_case_, true);
      made.group = pattern();
      ignores_case_ = before;
      EXPECT_TRUE(take(")"));
    } else if (take("[")) {
      made.is_negated = take("^");
      while (!take("]")) {
        if (now() == '\\' &&
            std::u32string_view(U"psS").find(letters_.at(at_ + 1).code) != std::u32string_view::npos) {
          ++at_;
          made.any_of.push_back(escaped());
          continue;
        }
        const auto character = [&] {
          const bool is_escaped = take("\\");
          const char32_t c = letters_.at(at_++).code;
          return is_escaped && c == 'r' ? U'\r' : is_escaped && c == 'n' ? U'\n' : c;
        };
        const char32_t first = character(), last = take("-") ? character() : first;
        made.any_of.push_back([=](const Letter& l) { return l.code >= first && l.code <= last; });
      }
    } else if (take("\\")) {
      made.any_of.push_back(escaped());
    } else {
      const char32_t c = letters_.at(at_++).code;
      const bool folds = ignores_case_;
      made.any_of.push_back([=](const Letter& l) {
        const char32_t other = folds && l.code == 0x17f ? U's'
                               : folds && l.code < 0x80 ? char32_t(std::tolower(int(l.code)))
                                                        : l.code;
        return other == c;
      });
    }
    return made;
  }
  void quantify(Item& to) {
    constexpr std::size_t any = ~std::size_t{0};
    if (take("?"))
      to.least = 0;
    else if (take("*"))
      to.least = 0, to.most = any;
    else if (take("+"))
      to.most = any;
    else if (take("{1,3}"))
      to.most = 3;
  }

  Letters letters_;
  std::size_t at_ = 0;
  bool ignores_case_ = false;
};

// Calls next with the end of every match that begins at i. The order is that of a backtracking engine.
using Next = std::function<bool(std::size_t)>;
bool matches(const Pattern& p, const Letters& text, std::size_t i, const Next& next);

bool matches_rest(const std::vector<Item>& items, std::size_t k, std::size_t times, const Letters& text,
                  std::size_t i, const Next& next) {
  if (k == items.size()) return next(i);
  const Item& item = items[k];
  if (item.is_not_ahead)
    return !matches(item.group, text, i, [](std::size_t) { return true; }) &&
           matches_rest(items, k + 1, 0, text, i, next);
  const auto again = [&](std::size_t end) { return matches_rest(items, k, times + 1, text, end, next); };
  if (times < item.most) {
    if (!item.group.empty() ? matches(item.group, text, i, again)
                            : i < text.size() && item.has(text[i]) && again(i + 1))
      return true;
  }
  return times >= item.least && matches_rest(items, k + 1, 0, text, i, next);
}

bool matches(const Pattern& p, const Letters& text, std::size_t i, const Next& next) {
  return std::ranges::any_of(p, [&](const auto& items) { return matches_rest(items, 0, 0, text, i, next); });
}

// Returns the matches of the pattern and the strings between them.
std::vector<std::string> isolated(const Pattern& pattern, std::string_view text) {
  const Letters letters = letters_of(text);
  std::vector<std::string> words;
  std::size_t between = 0;  // index of the first letter after the last match
  const auto add = [&](std::size_t first, std::size_t last) {
    if (first == last) return;
    const std::size_t begin = letters[first].begin;
    words.emplace_back(text.substr(begin, letters[last - 1].end - begin));
  };
  for (std::size_t i = 0; i < letters.size();) {
    std::size_t end = i;
    if (matches(pattern, letters, i, [&](std::size_t e) { return end = e, true; }) && end > i)
      add(between, i), add(i, end), between = i = end;
    else
      ++i;
  }
  add(between, letters.size());
  return words;
}

// Bytes after the end of the string must not change its words.
std::vector<std::string> words_of(WordRule rule, const std::string& text) {
  std::vector<std::string> words;
  for (const char* more : {"\n/", "a", "'s", " 1", "\u0301", "\u2581", "\u4e00"}) {
    const std::string longer = text + more;
    const std::string_view view = std::string_view(longer).substr(0, text.size());
    std::vector<std::string> found;
    for (std::size_t i = 0, end = 0; i < view.size(); i = end) {
      end = text::word_end(rule, view, i);
      if (end <= i || end > view.size()) return {"an end at " + std::to_string(end)};
      found.emplace_back(view.substr(i, end - i));
    }
    if (!words.empty() && found != words) return {"other words before " + std::string(more)};
    words = found;
  }
  return words;
}

const std::vector<std::string> kinds_of_letters{
    "a",      "b",      "Z",        "A",          "s",      "t",      "r",      "e",      "v",      "l",
    "L",      "d",      "M",        "'",          "'",      "'",      " ",      " ",      " ",      "\n",
    "\r",     "\t",     "\u00a0",   "\u2028",     "\u3000", "\x0b",   "1",      "2",      "9",      "\u00bd",
    "\u2167", "\u0667", ".",        ",",          "/",      "-",      "(",      "]",      "_",      "$",
    "+",      "^",      "\u20ac",   "\u00e9",     "\u00c9", "\u01c5", "\u02b0", "\u00aa", "\u4e00", "\u9fa5",
    "\u9fa6", "\u3042", "\u30ff",   "\u303f",     "\u0301", "\u093f", "\u017f", "\u200b", "\x01",   "\x1f",
    "\xff",   "\xc3",   "\xe2\x82", "\U0001f600", "'re",    "'ve",    "'ll",    "'RE",    "'vE",    "'Ll"};

TEST(PlainWords, RulesAgreeWithTheirRegularExpressions) {
  for (const WordRule rule : {WordRule::gpt2, WordRule::llama3, WordRule::qwen2, WordRule::qwen35,
                              WordRule::gpt4o, WordRule::tekken, WordRule::deepseek_digits,
                              WordRule::deepseek_ideographs, WordRule::deepseek_words}) {
    std::mt19937 random(5);
    const std::string_view text = text::pattern_of_rule(rule);
    const Pattern pattern = Parser(text).pattern();
    EXPECT_EQ(text::rule_of_pattern(text), rule);
    bool all = true;
    for (int i = 0; i < 500; ++i) {
      const std::string random_one = random_text(random, kinds_of_letters, 14);
      const auto words = isolated(pattern, random_one);
      ASSERT_EQ(words_of(rule, random_one), words) << text << " of " << io::json_string(random_one);
      for (const std::string& word : words) {
        const Letters letters = letters_of(word);
        all = all && matches(pattern, letters, 0, [&](std::size_t end) { return end == letters.size(); });
      }
    }
    EXPECT_LE(text::matches_all_text(rule), all);  // without the claim, characters may remain between matches
    EXPECT_EQ(text::matches_all_text(rule), rule < WordRule::deepseek_digits);
  }
  for (const WordRule rule :
       {WordRule::bytes, WordRule::each_digit, WordRule::digits, WordRule::each_space, WordRule::spaces}) {
    EXPECT_EQ(text::pattern_of_rule(rule), "");
    EXPECT_FALSE(text::matches_all_text(rule));
  }
  EXPECT_EQ(text::rule_of_pattern("\\w+"), std::nullopt);
}

// Tests runs of one kind, and pieces that begin at each ▁.
TEST(PlainWords, RunsOfDigitsAndSpacesAgreeWithALoop) {
  std::mt19937 random(6);
  std::vector<std::string> pieces = kinds_of_letters;
  for (int i = 0; i < 12; ++i) pieces.insert(pieces.end(), {"\u2581", "7", "\xe2\x96"});
  for (int i = 0; i < 600; ++i) {
    const std::string text = random_text(random, pieces, 14);
    std::vector<std::string> each_digit, digits, each_space, spaces;
    bool was_digit = false, was_mark = false, begins = true;
    for (const Letter& l : letters_of(text)) {
      const std::string letter = text.substr(l.begin, l.end - l.begin);
      const bool is_digit = (l.flags & text::char_class::numeric) != 0, is_mark = letter == "\u2581";
      const auto add = [&](std::vector<std::string>& to, bool is_new) {
        if (is_new || begins) to.emplace_back();
        to.back() += letter;
      };
      add(each_digit, is_digit || was_digit), add(digits, is_digit != was_digit);
      add(each_space, is_mark), add(spaces, is_mark && !was_mark);
      was_digit = is_digit, was_mark = is_mark, begins = false;
    }
    ASSERT_EQ(words_of(WordRule::each_digit, text), each_digit) << text;
    ASSERT_EQ(words_of(WordRule::digits, text), digits) << text;
    ASSERT_EQ(words_of(WordRule::each_space, text), each_space) << text;
    ASSERT_EQ(words_of(WordRule::spaces, text), spaces) << text;
  }
}

// The end of a word does not depend on the characters before the word.
TEST(PlainWords, EndsAreIndependentOfThePrecedingString) {
  std::mt19937 random(8);
  std::vector<std::string> pieces = kinds_of_letters;
  for (int i = 0; i < 12; ++i) pieces.emplace_back("\u2581");
  for (int i = 0; i < 150; ++i) {
    const std::string text = random_text(random, pieces, 14);
    for (const WordRule rule :
         {WordRule::bytes, WordRule::gpt2, WordRule::llama3, WordRule::qwen2, WordRule::qwen35,
          WordRule::gpt4o, WordRule::tekken, WordRule::deepseek_digits, WordRule::deepseek_ideographs,
          WordRule::deepseek_words, WordRule::each_digit, WordRule::digits, WordRule::each_space,
          WordRule::spaces})
      for (const Letter& l : letters_of(text))
        ASSERT_EQ(text::word_end(rule, text, l.begin),
                  l.begin + text::word_end(rule, std::string_view(text).substr(l.begin), 0))
            << io::json_string(text) << " from " << l.begin << ", rule " << static_cast<int>(rule);
  }
}

// Implements the rule of older checkpoints, as the comment of the rule describes it.
std::vector<std::string> words_by_bytes(std::string_view text) {
  const auto kind = [&](std::size_t i) {
    const auto c = static_cast<unsigned char>(text[i]);
    return c == ' ' || (c >= 9 && c <= 13) ? 's'
           : std::isdigit(c)               ? 'd'
           : c >= 0x80 || std::isalpha(c)  ? 'l'
                                           : 'o';
  };
  std::vector<std::string> words;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t n = 0;
    for (const std::string_view c : {"'re", "'ve", "'ll", "'s", "'t", "'m", "'d"})
      if (n == 0 && text.substr(i).starts_with(c)) n = c.size();
    if (n == 0) {
      const bool has_space = text[i] == ' ' && i + 1 < text.size() && kind(i + 1) != 's';
      n = has_space ? 2 : 1;
      const char own = kind(i + n - 1);
      while (i + n < text.size() && n < text::max_word_bytes && kind(i + n) == own) ++n;
      if (own == 's' && n > 1 && text[i + n - 1] == ' ' && i + n < text.size() && kind(i + n) != 's') --n;
    }
    words.emplace_back(text.substr(i, n));
    i += n;
  }
  return words;
}

TEST(PlainWords, RulesOnBytesAgreeWithALoop) {
  std::mt19937 random(7);
  for (int i = 0; i < 1500; ++i) {
    const std::string text = random_text(random, kinds_of_letters, 14);
    ASSERT_EQ(words_of(WordRule::bytes, text), words_by_bytes(text)) << io::json_string(text);
  }
  for (const char* begin : {"", " ", "  ", "'", "1", "\n"})
    for (const char* run : {"x", " ", "1", ".", "\n", "\xc3"})
      for (std::size_t n = text::max_word_bytes - 3; n <= text::max_word_bytes + 3; ++n)
        for (const char* end : {"", "a", " ", "\n"}) {
          std::string text = begin;
          for (std::size_t k = 0; k < n; ++k) text += run;
          EXPECT_EQ(words_of(WordRule::bytes, text + end), words_by_bytes(text + end))
              << begin << run << n << end;
        }
}

TEST(PlainWords, SafeSplitsAreBetweenLettersAndAfterLines) {
  const std::vector<std::string> pieces{"a",    "Z",          "b", "z", "A",      " ",      " ",
                                        "\n",   "\n",         "1", "/", "\u00e9", "\u4e00", "\u00a0",
                                        "\xff", "\U0001f600", "@", "[", "`",      "{"};
  std::mt19937 random(8);
  int cuts = 0;
  for (int i = 0; i < 800; ++i) {
    const std::string text = random_text(random, pieces, 12);
    const Letters letters = letters_of(text);
    const auto is_letter = [](const Letter& l) { return l.code < 0x80 && std::isalpha(int(l.code)); };
    const auto is_space = [](const Letter& l) { return (l.flags & text::char_class::space) != 0; };
    std::set<std::size_t> safe{0};
    for (std::size_t k = 1; k + 1 < letters.size(); ++k)
      if (letters[k].code == ' ' && is_letter(letters[k - 1]) && is_letter(letters[k + 1]))
        safe.insert(letters[k].begin);
    for (std::size_t k = 2; k < letters.size(); ++k)
      if (letters[k - 1].code == '\n' && !is_space(letters[k - 2]) && !is_space(letters[k]) &&
          letters[k].code != '/')
        safe.insert(letters[k].begin);
    for (std::size_t limit = 0; limit <= text.size() + 1; ++limit) {
      const std::size_t expected = limit >= text.size() ? text.size() : *std::prev(safe.upper_bound(limit));
      ASSERT_EQ(text::safe_cut(text, limit), expected) << io::json_string(text) << " " << limit;
      cuts += expected > 0;
    }
  }
  EXPECT_GT(cuts, 1000);
}

// ---- Sets of characters

TEST(PlainRuns, SetsAgreeWithTheirRegularExpressions) {
  const char* patterns[] = {"[ab]",
                            "[ab]+",
                            "[ab]{1,3}",
                            "\\s?[ab]",
                            "\\s?[ab]+",
                            "\\s?[^x]",
                            "\\p{L}",
                            "\\p{L}+",
                            "\\s?\\p{M}+",
                            "\\p{N}{1,3}",
                            "\\s?\\p{P}{1,3}",
                            "\\p{S}+",
                            "[\\p{L}1]+",
                            "[\\r\\n]",
                            "[\\r\\n]+",
                            "[\\-\\]\\^a]+",
                            "[a-c\\p{N}_]+",
                            "[\u4e00-\u9fa5]+",
                            "\\s?[A-Za-z\u00e9]+",
                            "a+",
                            "[a-]",
                            "[c-a]",
                            "[]",
                            "[ab",
                            "[a]++",
                            "[a]{1,2}",
                            "(a)",
                            "[a&b]",
                            "[\\d]",
                            "[\\.]",
                            "\\s+$",
                            "\\p{Lu}+",
                            "[a]x",
                            "",
                            "\\s?",
                            "[a[b]",
                            "\\s[a]",
                            "[\\",
                            "[\\p{L}\\p{M}\\p{P}\\p{S}\\p{N}]+",
                            "[\\a]",
                            "[\\R]",
                            "[a-\\n]",
                            "[\\n-a]+"};
  const std::set<std::string> refused{"\\s?[^x]", "a+",    "[a-]",   "[c-a]", "[]",       "[ab",   "[a]++",
                                      "[a]{1,2}", "(a)",   "[a&b]",  "[\\d]", "\\p{Lu}+", "[a]x",  "",
                                      "\\s?",     "[a[b]", "\\s[a]", "[\\",   "[\\a]",    "[\\R]", "[a-\\n]"};
  for (const char* text : patterns) {
    const auto runs = text::CharRuns::parse(text);
    EXPECT_EQ(!runs, refused.contains(text)) << text;
    if (!runs) continue;
    EXPECT_EQ(runs->pattern(), text);
    std::mt19937 random(9);
    std::vector<std::string> pieces = kinds_of_letters;
    for (int i = 0; i < 8; ++i) pieces.insert(pieces.end(), {"a", "b", "c", " "});
    Pattern pattern = text == std::string("\\s+$") ? Pattern() : Parser(text).pattern();
    for (int i = 0; i < 120; ++i) {
      const std::string one = random_text(random, pieces, 12);
      std::vector<std::string> words, expected;
      const std::string longer = one + (i % 2 == 0 ? "a " : " 1");
      const std::string_view view = std::string_view(longer).substr(0, one.size());
      for (std::size_t k = 0, end = 0; k < one.size(); k = end) {
        end = runs->word_end(view, k);
        ASSERT_TRUE(end > k && end <= one.size()) << text << " of " << io::json_string(one);
        words.push_back(one.substr(k, end - k));
      }
      if (pattern.empty()) {  // white space at the end of the string
        const Letters letters = letters_of(one);
        std::size_t first = letters.size();
        while (first > 0 && (letters[first - 1].flags & text::char_class::space) != 0) --first;
        const std::size_t cut = first == letters.size() ? one.size() : letters[first].begin;
        for (const std::string& part : {one.substr(0, cut), one.substr(cut)})
          if (!part.empty()) expected.push_back(part);
      } else {
        expected = isolated(pattern, one);
      }
      ASSERT_EQ(words, expected) << text << " of " << io::json_string(one);
    }
  }
}

TEST(PlainRuns, SetsAreTheSameInAnyOrder) {
  const auto same = [](const char* a, const char* b) {
    const bool one = text::CharRuns::parse(a)->matches_as(*text::CharRuns::parse(b));
    EXPECT_EQ(text::CharRuns::parse(b)->matches_as(*text::CharRuns::parse(a)), one) << a << " " << b;
    return one;
  };
  for (const auto& [a, b] : {std::pair{"[abc]", "[cba]"},
                             {"[a-c]", "[abc]"},
                             {"[a-fd-h]", "[a-h]"},
                             {"[a-hc-d]", "[a-h]"},
                             {"[\\p{L}a]", "[a\\p{L}]"},
                             {"\\p{L}+", "[\\p{L}]+"},
                             {"[a-cd-f]", "[a-f]"},
                             {"\\s+$", "\\s+$"}})
    EXPECT_TRUE(same(a, b)) << a << " " << b;
  for (const auto& [a, b] : {std::pair{"[abc]", "[abd]"},
                             {"[abc]", "[abc]+"},
                             {"[abc]+", "[abc]{1,3}"},
                             {"[abc]", "\\s?[abc]"},
                             {"\\p{L}", "\\p{M}"},
                             {"[\\p{L}a]", "\\p{L}"},
                             {"[a-c]", "[a-d]"},
                             {"[a-c]", "[b-c]"},
                             {"[a-ce-f]", "[a-f]"},
                             {"\\s+$", "[a]+"},
                             {"[a-bd]", "[a-b]"}})
    EXPECT_FALSE(same(a, b)) << a << " " << b;
}

}  // namespace
}  // namespace tg
