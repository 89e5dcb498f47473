// A header of the consumer's whose path tilegrad has too, and functions that tilegrad has in its own
// namespace.
#pragma once

#include <string>

inline std::string logged;

inline void profile(const std::string& what) {
  logged += what + '\n';
}
inline int full(int n) {
  return n;
}
inline const char* backend() {
  return "the consumer's";
}
