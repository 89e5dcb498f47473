// How text is cut into words before byte-level BPE, which never merges across two of them. After GPT-2's
// pattern (Radford et al., 2019), on bytes instead of Unicode's classes, so that any bytes can be cut.
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

// The last place up to `limit` where a word begins whatever stands before it, which is after a line break and
// not before white space; 0 if there is none. What is before and what is after it can be cut apart.
std::size_t safe_cut(std::string_view text, std::size_t limit);

}  // namespace tg::text
