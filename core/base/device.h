// Device: where a program runs and parameters live.
#pragma once

#include <string>

namespace tg {

struct Device {
  enum Kind { cpu_kind, cuda_kind } kind = cpu_kind;
  int ordinal = 0;
  static Device cpu() { return {}; }
  static Device cuda(int ordinal = 0) { return {cuda_kind, ordinal}; }
  // "cpu", "cuda", or "cuda:1" for an ordinal other than 0.
  std::string text() const;
  // The device of such a text; throws DeviceError for any other text.
  static Device parse(const std::string& text);
  friend bool operator==(const Device&, const Device&) = default;
};

}  // namespace tg
