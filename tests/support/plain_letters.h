// Splits strings into characters with their classes, and makes random strings, for tests of tokenizers.
#pragma once

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "io/files/utf8.h"
#include "io/text/unicode.h"

namespace tg::testing {

struct Letter {
  char32_t code = text::Char::not_a_character;  // for a byte that is not UTF-8
  int flags = 0, cases = 0;
  std::size_t begin = 0, end = 0;
};
using Letters = std::vector<Letter>;

inline Letters letters_of(std::string_view text) {
  Letters all;
  for (std::size_t i = 0; i < text.size();) {
    Letter l{.begin = i};
    if (const std::size_t n = io::utf8_decode(text, i, l.code); n > 0) {
      l.flags = text::char_classes()[l.code], l.cases = text::letter_cases()[l.code];
      i += n;
    } else {
      l.code = text::Char::not_a_character, ++i;
    }
    l.end = i;
    all.push_back(l);
  }
  return all;
}

inline std::string random_text(std::mt19937& random, const std::vector<std::string>& pieces,
                               std::size_t most) {
  std::string text;
  for (std::size_t n = random() % (most + 1); n > 0; --n) text += pieces[random() % pieces.size()];
  return text;
}

}  // namespace tg::testing
