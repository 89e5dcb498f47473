// Device: where a program runs and parameters live.
#pragma once

#include <string>

namespace tg {

struct Device {
  enum Kind { cpu_kind } kind = cpu_kind;
  int ordinal = 0;
  static Device cpu() { return {}; }
  std::string text() const { return "cpu"; }
  friend bool operator==(const Device&, const Device&) = default;
};

}  // namespace tg
