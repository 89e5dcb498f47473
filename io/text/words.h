// Splits text into words before byte-pair encoding, which never merges across two of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tg::text {

// No token of a Bpe is longer, and no word of `WordRule::bytes`.
inline constexpr std::size_t max_word_bytes = 128;

// Where words end. The patterns are those of tokenizer.json files (io/text/hf_stages.h); of alternatives
// the first that matches counts, and each takes as much as it can. \p{L}, \p{M}, \p{N}, \p{P}, \p{S} are
// Unicode's categories and \s its white space, of version 16.0. A byte that is not UTF-8 is a character
// without a category.
enum class WordRule : std::uint8_t {
  // The rule of older checkpoints: much like gpt2, on bytes instead of characters. A word has at
  // most
  // max_word_bytes bytes and is the first of:
  //   · 's 't 'm 'd 're 've 'll
  //   · letters (a-z, A-Z and every byte from 0x80), digits, or other signs, a run of one of these, with one
  //     space before it if there is one
  //   · white space; of two or more, the last one is left to the word that follows if it is a space
  bytes,
  // [Radford, GPT-2]: a contraction as above; letters, digits or other signs, with one space before them if
  // there
  // is one; white space, of which the last character is left to what follows.
  gpt2,
  // Contractions in either case; letters with one character before them that is neither a digit nor a line
  // break;
  // up to three digits; other signs, with one space before them and line breaks after them; white space up to
  // its
  // last line break, otherwise as gpt2.
  llama3,
  qwen2,   // as llama3, but each digit is a word
  qwen35,  // as qwen2, with marks among the letters
  // Upper-case letters, then lower-case ones. Marks and letters without a case are either. One character may
  // precede
  // them, as in llama3, and a contraction may follow them. The rest is as in llama3, but slashes are allowed
  // among the
  // line breaks.
  gpt4o,
  tekken,  // [Mistral] as gpt4o without contractions, and each digit is a word
  // The three steps of DeepSeek-V3, each within the words of the one before: up to three digits, or what is
  // between; ideographs and kana, or what is between; then much as llama3, with marks among the letters.
  deepseek_digits,
  deepseek_ideographs,
  deepseek_words,
  each_digit,  // a numeral (N of Unicode 17.0), or what is between two
  digits,      // the same, but numerals that follow each other are one word
  // For texts with ▁ (U+2581) in place of spaces: a word begins at each ▁, or at the first of several.
  each_space,
  spaces,
};

// Where the word that begins at byte i < text.size() ends. The text is all that the rule knows: it does not
// look before i.
std::size_t word_end(WordRule rule, std::string_view text, std::size_t i);

// The same by WordRule::bytes.
std::size_t word_end(std::string_view text, std::size_t i);

// The last position up to `limit` where a word begins whatever precedes it, by the rules from `bytes` to
// `deepseek_words`: before a space between two ASCII letters, or after a line break between two characters
// that are not white space. 0 if there is none. The text before it and the text after it can be split into
// words separately.
std::size_t safe_cut(std::string_view text, std::size_t limit);

}  // namespace tg::text
