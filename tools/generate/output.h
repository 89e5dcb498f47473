// What generate writes, at once and in full.
#pragma once

#include <cstdio>
#include <string>

#include <tilegrad/core/base/error.h>

namespace tg {

// To standard output, without waiting for more; throws Error if that fails.
inline void write_text(const std::string& s) {
  if (std::fwrite(s.data(), 1, s.size(), stdout) != s.size() || std::fflush(stdout) != 0)
    throw Error("[generate] cannot write to standard output");
}

}  // namespace tg
