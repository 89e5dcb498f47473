// UTF-8: checks that text is well formed (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF), and
// converts between bytes and code points.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tg::io {

// The number of well-formed bytes from the start: s.size() if all are, otherwise the offset of the first
// ill-formed sequence.
std::size_t utf8_valid_bytes(std::string_view s);

// How many bytes at the end of s begin a character that is not complete: 0 to 3. Bytes that no further byte
// can make well formed do not count.
std::size_t utf8_incomplete_bytes(std::string_view s);

// s, or where it is longer than `most` bytes, the whole characters of so many and "…".
std::string utf8_shortened(std::string_view s, std::size_t most);

// The code point at byte i of well-formed s, i < s.size(); moves i to the next one. Throws FormatError on an
// ill-formed sequence.
char32_t utf8_next(std::string_view s, std::size_t& i);

// Decodes the character at byte i < s.size() into c and returns its length; 0 on an ill-formed
// sequence, and c is then any value.
std::size_t utf8_decode(std::string_view s, std::size_t i, char32_t& c);

// Appends the encoding of a code point that UTF-8 can hold.
void utf8_append(std::string& out, char32_t c);

}  // namespace tg::io
