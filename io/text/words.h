// Splits text into words before byte-pair encoding, which never merges across words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tg::text {

// Maximum length in bytes of a Bpe token and of a WordRule::bytes word.
inline constexpr std::size_t max_word_bytes = 128;

// Rules that split text into words. The patterns are the patterns of tokenizer.json files
// (io/text/hf_stages.h). The first alternative that matches is used, and every alternative is greedy. \p{L},
// \p{M}, \p{N}, \p{P}, \p{S} are the categories of Unicode 16.0, and \s is its white space. A byte that is
// not UTF-8 is a character without a category.
enum class WordRule : std::uint8_t {
  // The rule of older checkpoints: similar to gpt2, but on bytes instead of characters. A word has at most
  // max_word_bytes bytes and is the first of:
  // - 's 't 'm 'd 're 've 'll
  // - a run of letters (a-z, A-Z and every byte from 0x80), after an optional space;
  // - a run of digits, or of other signs, after an optional space;
  // - white space. If there are two or more such characters and the last one is a space, that space belongs
  //   to the next word.
  bytes,
  // [Radford, GPT-2]: a contraction as above, or letters, digits or other signs after an optional space.
  // Otherwise white space; its last character belongs to the next word.
  gpt2,
  // Contractions in either case. Letters, after an optional character that is neither a digit nor a line
  // break. Up to three digits. Other signs, after an optional space and before optional line breaks. White
  // space up to its last line break, otherwise as in gpt2.
  llama3,
  qwen2,   // as llama3, but each digit is a word
  qwen35,  // as qwen2, but marks count as letters
  // Upper-case letters, then lower-case ones. Marks and letters without a case count as either. As in llama3,
  // one other character may precede the letters; a contraction may follow them. The rest is as in llama3, but
  // slashes count as line breaks.
  gpt4o,
  tekken,  // [Mistral] as gpt4o, but without contractions, and each digit is a word
  // The three stages of DeepSeek-V3, each applied to the words of the previous one. First stage: up to three
  // digits, or the text between such words.
  deepseek_digits,
  // Second stage: ideographs and kana, or the text between such words.
  deepseek_ideographs,
  // Third stage: similar to llama3, but marks count as letters.
  deepseek_words,
  each_digit,  // a numeral (N of Unicode 17.0), or the text between two
  digits,      // as each_digit, but adjacent numerals are one word
  // For strings with ▁ (U+2581) instead of spaces: a word begins at each ▁.
  each_space,
  // As each_space, but a word begins only at the first of several ▁.
  spaces,
};

// Returns the end of the word that begins at byte i < text.size(). The rule does not look before i.
std::size_t word_end(WordRule rule, std::string_view text, std::size_t i);

// As above, with WordRule::bytes.
std::size_t word_end(std::string_view text, std::size_t i);

// Returns the last position up to `limit` at which every rule from `bytes` to `deepseek_words` begins a word,
// whatever the text before it is. Such a position is before a space between two ASCII letters, or after a
// line break between two characters that are not white space. Both parts of the text can then be split into
// words separately. Returns 0 if there is no such position.
std::size_t safe_cut(std::string_view text, std::size_t limit);

}  // namespace tg::text
