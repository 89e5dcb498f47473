// Splits text into words before byte-level BPE, which never merges across two of them. It follows the pattern
// of [Radford, GPT-2], on bytes instead of Unicode's classes, so that any bytes can be split.
#pragma once

#include <cstddef>
#include <string_view>

namespace tg::text {

// No word is longer, so that neither is a token, and merging within a word stays cheap.
inline constexpr std::size_t max_word_bytes = 128;

// Where the word that begins at byte i < text.size() ends. A word is the first of:
//   · 's 't 'm 'd 're 've 'll
//   · letters (a-z, A-Z and every byte from 0x80), digits, or other signs, a run of one of these, with one
//     space before it if there is one
//   · white space; of two or more, the last one is left to the word that follows if it is a space
std::size_t word_end(std::string_view text, std::size_t i);

// The last position up to `limit` where a word begins whatever precedes it: after a line break and not before
// white space. 0 if there is none. The text before it and the text after it can be split into words
// separately.
std::size_t safe_cut(std::string_view text, std::size_t limit);

}  // namespace tg::text
