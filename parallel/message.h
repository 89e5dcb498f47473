// How this folder says things.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

#include <tilegrad/parallel/world.h>

namespace tg::parallel {

[[noreturn]] inline void fail(const std::string& what) {
  throw Error("[ranks] " + what);
}
[[noreturn]] inline void refuse_world(const std::string& what) {
  throw WorldError("[ranks] " + what);
}

// "0.5 s", "60 s"
inline std::string seconds_text(std::chrono::duration<double> t) {
  char text[32];
  std::snprintf(text, sizeof text, t.count() < 10 ? "%.1f s" : "%.0f s", t.count());
  return text;
}

}  // namespace tg::parallel
