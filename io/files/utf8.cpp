// UTF-8 decoding by the ranges of RFC 3629 §4, and encoding.
#include "io/files/utf8.h"

#include <algorithm>
#include <iterator>

#include <tilegrad/core/base/error.h>

namespace tg::io {
std::size_t utf8_decode(std::string_view s, std::size_t i, char32_t& c) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned char>(s[i + k]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) {
    c = lead;
    return 1;
  }
  const std::size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc0 || lead > 0xf7 || s.size() - i < length) return 0;
  c = lead & (0x7fu >> length);
  for (std::size_t k = 1; k < length; ++k) {
    if ((byte(k) & 0xc0) != 0x80) return 0;
    c = (c << 6) | (byte(k) & 0x3fu);
  }  // smaller code points would be overlong
  const char32_t least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;  // less would be overlong
  if (c < least || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff)) return 0;
  return length;
}

std::size_t utf8_valid_bytes(std::string_view s) {
  std::size_t i = 0;
  for (char32_t c; i < s.size();) {
    const std::size_t length = utf8_decode(s, i, c);
    if (length == 0) break;
    i += length;
  }
  return i;
}

std::size_t utf8_incomplete_bytes(std::string_view s) {
  for (std::size_t n = 1; n <= std::min<std::size_t>(3, s.size()); ++n) {
    // If any continuation bytes complete the character, then the smallest or the largest ones do so.
    for (const char filler : {'\x80', '\xbf'}) {
      char bytes[4];
      std::fill(s.copy(bytes, n, s.size() - n) + bytes, std::end(bytes), filler);
      char32_t c = 0;
      if (utf8_decode({bytes, sizeof bytes}, 0, c) > n) return n;
    }
  }
  return 0;
}

char32_t utf8_next(std::string_view s, std::size_t& i) {
  char32_t c = 0;
  const std::size_t length = i < s.size() ? utf8_decode(s, i, c) : 0;
  if (length == 0) throw FormatError("[utf8] no well-formed character at byte " + std::to_string(i));
  i += length;
  return c;
}

void utf8_append(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | (c >> 6)), put(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    put(0xe0 | (c >> 12)), put(0x80 | ((c >> 6) & 0x3f)), put(0x80 | (c & 0x3f));
  } else {
    put(0xf0 | (c >> 18)), put(0x80 | ((c >> 12) & 0x3f)), put(0x80 | ((c >> 6) & 0x3f)),
        put(0x80 | (c & 0x3f));
  }
}

std::string utf8_shortened(std::string_view s, std::size_t most) {
  if (s.size() <= most) return std::string(s);
  return std::string(s.substr(0, utf8_valid_bytes(s.substr(0, most)))) + "…";
}

}  // namespace tg::io
