// Device: the processor on which a program runs or a parameter is stored.
#pragma once

#include <string>

namespace tg {

// A CPU or one GPU.
struct Device {
  // The backends.
  enum Kind {
    cpu_kind,  // the CPU backend
    cuda_kind  // the CUDA backend
  };
  Kind kind = cpu_kind;  // kind of backend
  int ordinal = 0;       // index of the GPU; 0 for the CPU
  // The CPU.
  static Device cpu() { return {}; }
  // The GPU with this CUDA ordinal.
  static Device cuda(int ordinal = 0) { return {cuda_kind, ordinal}; }
  // The name: "cpu", "cuda", or "cuda:1" for an ordinal other than 0.
  std::string text() const;
  // Parses such a name. Throws DeviceError for any other string.
  static Device parse(const std::string& text);
  // Whether both are the same device.
  friend bool operator==(const Device&, const Device&) = default;
};

}  // namespace tg
