// Text for a terminal.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace tg {

// The text with control characters as escapes, "\n" or "\x1b": a message stays one line and cannot command
// the terminal.
inline std::string printable(std::string_view text) {
  std::string s;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters too; in UTF-8 they are c2 80 to c2 9f.
    const bool follows_c2 = i > 0 && text[i - 1] == '\xc2' && c >= 0x80 && c <= 0x9f;
    if (c >= 0x20 && c != 0x7f && !follows_c2) {
      s += text[i];
    } else if (c == '\n') {
      s += "\\n";
    } else {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", c);
      s += escape;
    }
  }
  return s;
}

}  // namespace tg
