#include "io/text/unicode.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <unordered_map>
#include <vector>

namespace tg::text {
namespace {

struct ClassRange {
  char32_t first, last;
  std::uint8_t value;
};
struct Decomposition {
  char32_t composed, first, second;  // second is 0 if it decomposes into one character
};

#include "io/text/unicode_tables.inc"

constexpr std::size_t code_points = 0x110000;

std::vector<std::uint8_t> flags_of(std::span<const ClassRange> ranges) {
  std::vector<std::uint8_t> flags(code_points);
  for (const ClassRange& r : ranges) {
    const char32_t end = r.last + 1;
    std::fill(flags.begin() + r.first, flags.begin() + end, r.value);
  }
  return flags;
}

// Hangul syllables are composed by arithmetic [Unicode 16.0, section 3.12].
constexpr char32_t hangul_l = 0x1100, hangul_v = 0x1161, hangul_t = 0x11a7, hangul = 0xac00;
constexpr char32_t hangul_ls = 19, hangul_vs = 21, hangul_ts = 28;

class Compositions {
 public:
  Compositions() : combining_(code_points), changes_(code_points) {
    for (const ClassRange& r : combining_ranges)
      for (char32_t c = r.first; c <= r.last; ++c) combining_[c] = r.value, changes_[c] = true;
    for (const Decomposition& d : compositions) {
      parts_[d.composed] = d;
      composed_[key(d.first, d.second)] = d.composed;
      changes_[d.second] = true;
    }
    for (const Decomposition& d : decompositions) parts_[d.composed] = d, changes_[d.composed] = true;
    for (char32_t v = 0; v < hangul_vs; ++v) changes_[hangul_v + v] = true;
    for (char32_t t = 1; t < hangul_ts; ++t) changes_[hangul_t + t] = true;
  }

  // Whether a string that contains c may differ from its NFC. A string without any such character is in NFC.
  bool changes(char32_t c) const { return changes_[c]; }
  std::uint8_t combining_class(char32_t c) const { return combining_[c]; }

  // Appends the decomposition of c. Keeps Hangul syllables, because their parts would be composed to the same
  // syllable again.
  void decompose(char32_t c, std::vector<char32_t>& out) const {
    const auto found = parts_.find(c);
    if (found == parts_.end()) {
      out.push_back(c);
      return;
    }
    decompose(found->second.first, out);
    if (found->second.second != 0) decompose(found->second.second, out);
  }

  // Returns the composition of two characters, or 0.
  char32_t compose(char32_t a, char32_t b) const {
    if (a >= hangul_l && a < hangul_l + hangul_ls && b >= hangul_v && b < hangul_v + hangul_vs)
      return hangul + ((a - hangul_l) * hangul_vs + (b - hangul_v)) * hangul_ts;
    if (a >= hangul && a < hangul + hangul_ls * hangul_vs * hangul_ts && (a - hangul) % hangul_ts == 0 &&
        b > hangul_t && b < hangul_t + hangul_ts)
      return a + (b - hangul_t);
    const auto found = composed_.find(key(a, b));
    return found == composed_.end() ? 0 : found->second;
  }

 private:
  static std::uint64_t key(char32_t a, char32_t b) { return std::uint64_t{a} << 32 | b; }

  std::vector<std::uint8_t> combining_;
  std::vector<bool> changes_;
  std::unordered_map<char32_t, Decomposition> parts_;
  std::unordered_map<std::uint64_t, char32_t> composed_;
};

const Compositions& all_compositions() {
  static const auto& made = *new Compositions;
  return made;
}

// Composes decomposed characters in canonical order, in place [UAX 15, section 1.3]. Each character is
// composed with the last starter before it. If a character of the same class or a starter is in between, it
// is not composed.
void compose_all(std::vector<char32_t>& text, const Compositions& all) {
  std::size_t kept = 0, starter = text.size();
  int last = 0;  // combining class of the previous character, if it was not composed
  for (const char32_t c : text) {
    const int own = all.combining_class(c);
    if (starter < text.size() && (starter + 1 == kept || (last != 0 && last < own))) {
      if (const char32_t both = all.compose(text[starter], c)) {
        text[starter] = both;
        continue;
      }
    }
    if (own == 0) starter = kept;
    last = own;
    text[kept++] = c;
  }
  text.resize(kept);
}

}  // namespace

const std::uint8_t* char_classes() {
  static const auto& table = *new auto(flags_of(class_ranges));
  return table.data();
}

const std::uint8_t* letter_cases() {
  static const auto& table = *new auto(flags_of(case_ranges));
  return table.data();
}

std::string nfc(std::string_view text) {
  // A character below this one never composes with a preceding character, so a string may be cut before such
  // a character.
  constexpr char32_t first_that_joins = 0x300;
  const Compositions& all = all_compositions();
  std::string out;
  out.reserve(text.size());
  std::vector<char32_t> characters;
  const std::uint8_t* classes = char_classes();
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t begin = i;
    bool changes = false;
    for (bool head = true; i < text.size(); head = false) {
      const Char c = char_at(text, i, classes);
      if (!head && (c.code < first_that_joins || c.code == Char::not_a_character)) break;
      i += c.length;
      if (c.code == Char::not_a_character) break;
      changes = changes || all.changes(c.code);
    }
    const std::string_view part = text.substr(begin, i - begin);
    if (!changes) {
      out += part;
      continue;
    }
    characters.clear();
    for (std::size_t k = 0; k < part.size();) all.decompose(io::utf8_next(part, k), characters);
    for (auto at = characters.begin(); at != characters.end();) {
      const auto is_starter = [&](char32_t c) { return all.combining_class(c) == 0; };
      const auto end = std::find_if(at, characters.end(), is_starter);
      std::stable_sort(
          at, end, [&](char32_t a, char32_t b) { return all.combining_class(a) < all.combining_class(b); });
      at = std::find_if_not(end, characters.end(), is_starter);
    }
    compose_all(characters, all);
    for (const char32_t c : characters) io::utf8_append(out, c);
  }
  return out;
}

}  // namespace tg::text
