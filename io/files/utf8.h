// UTF-8: checks that strings are well formed (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF),
// and converts between bytes and code points.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tg::io {

// Returns the number of well-formed bytes at the start: s.size(), or the offset of the first ill-formed
// sequence.
std::size_t utf8_valid_bytes(std::string_view s);

// Returns the number of bytes at the end of s that begin an incomplete character: 0 to 3. Returns 0 if no
// further bytes can complete these bytes to a well-formed character.
std::size_t utf8_incomplete_bytes(std::string_view s);

// Returns s if it has at most `most` bytes. Otherwise returns the complete characters in its first `most`
// bytes, then "…".
std::string utf8_shortened(std::string_view s, std::size_t most);

// Returns the code point at byte i < s.size() and advances i to the next code point. Throws FormatError for
// an ill-formed sequence.
char32_t utf8_next(std::string_view s, std::size_t& i);

// Decodes the character at byte i < s.size() into c and returns its length. Returns 0 for an ill-formed
// sequence; c is then unspecified.
std::size_t utf8_decode(std::string_view s, std::size_t i, char32_t& c);

// Appends the encoding of a valid code point.
void utf8_append(std::string& out, char32_t c);

}  // namespace tg::io
