// Counts lines with certain words.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>

namespace tg::testing {

// Returns the number of lines that contain all of the words.
inline int lines_with(const std::string& text, std::initializer_list<const char*> words) {
  int n = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    n += std::all_of(words.begin(), words.end(),
                     [&](const char* w) { return line.find(w) != std::string::npos; });
    at = end + 1;
  }
  return n;
}
inline int lines(const std::string& text) {
  return lines_with(text, {});
}

}  // namespace tg::testing
