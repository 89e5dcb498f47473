// The Unicode properties that tokenizers need: character classes of version 16.0, the case of letters, and
// canonical composition (NFC). tools/unicode_tables.py writes the tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "io/files/utf8.h"

namespace tg::text {

// Flags of a character. The first five are the general categories L, M, N, P and S. A character has at most
// one of these five. Control characters and unassigned code points have none.
namespace char_class {
inline constexpr std::uint8_t letter = 1, mark = 2, number = 4, punctuation = 8, symbol = 16;
inline constexpr std::uint8_t space = 32;  // White_Space: \s of regular expressions
// \w of regular expressions: letters, marks, digits, letter-like numbers, connectors and joiners.
inline constexpr std::uint8_t word = 64;
inline constexpr std::uint8_t numeric = 128;  // category N in Unicode 17.0
}  // namespace char_class

// Returns the flags of every code point, [0x110000]. The first call creates them.
const std::uint8_t* char_classes();

// Flags of letters with case: one for categories Lu and Lt, one for Ll. Other letters have no flag.
namespace letter_case {
inline constexpr std::uint8_t upper = 1, lower = 2;
}
const std::uint8_t* letter_cases();  // as char_classes()

// A character of a string that may contain any bytes. Each byte of an ill-formed sequence is a character
// without flags.
struct Char {
  char32_t code;  // not_a_character for a byte that is not UTF-8
  std::uint8_t flags;
  std::uint8_t length;  // in bytes

  static constexpr char32_t not_a_character = 0x110000;
  bool is(int any_of) const { return (flags & any_of) != 0; }
};

inline Char char_at(std::string_view text, std::size_t i, const std::uint8_t* classes) {
  const auto lead = static_cast<unsigned char>(text[i]);
  if (lead < 0x80) return {lead, classes[lead], 1};
  char32_t c = 0;
  const std::size_t length = io::utf8_decode(text, i, c);
  if (length == 0) return {Char::not_a_character, 0, 1};
  return {c, classes[c], static_cast<std::uint8_t>(length)};
}

// Returns the string in Normalization Form C (UAX 15), with the characters of Unicode 9.0, as in the package
// `tokenizers`. Bytes that are not UTF-8 are kept, and nothing is composed across them.
std::string nfc(std::string_view text);

}  // namespace tg::text
