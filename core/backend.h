// Backend: what a device offers the compiler: memory, copies, and the means to run a planned list of steps.
// Nothing above this interface knows which backend runs.
#pragma once

#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/op.h"

namespace tg {

// An operand of a step. `data` points at the element whose indices are all zero (layout.offset is already in
// it).
struct Arg {
  DType dtype;
  Layout layout;
  std::byte* data = nullptr;
};

// One kernel call of a program: one node, or a chain of pointwise nodes.
struct Step {
  const Op* op;
  Attrs attrs;
  std::vector<Arg> in, out;
  std::string name;            // the last node's path and op: "h0.mlp/gelu"
  std::source_location where;  // of the last node
};

// A prepared list of steps.
class Executable {
 public:
  virtual ~Executable() = default;
  virtual std::size_t workspace_bytes() const = 0;  // scratch memory for all steps, 64-byte aligned
  // Hands over the addresses: `steps` as given to prepare, now with data set; both outlive the executable.
  virtual void bind(std::span<const Step> steps, std::byte* workspace) = 0;
  // Throws Error, naming step, index and source line, if a kernel met an index out of range; the steps after
  // that one have not run then, so what they assign keeps its value.
  virtual void run() = 0;
  // Runs once and returns the seconds each step took, in the order of the steps.
  virtual std::vector<double> profile() = 0;
};

// How a program's steps are to be run; what a backend has no use for it ignores.
struct PrepareOptions {
  int threads = 0;    // 0 takes what the machine has
  bool tf32 = false;  // f32 products may round their operands to TF32 (10 bits of fraction)
};

class Backend {
 public:
  virtual ~Backend() = default;
  // 64-byte aligned memory; throws OutOfMemory with `what`, the size wanted and, where known, the size free.
  virtual std::shared_ptr<std::byte> allocate(std::size_t bytes, const std::string& what) = 0;
  // Bytes that could be allocated now; SIZE_MAX where that is not known.
  virtual std::size_t available_bytes() = 0;
  virtual void write(std::byte* device, const std::byte* host, std::size_t bytes) = 0;
  virtual void read(std::byte* host, const std::byte* device, std::size_t bytes) = 0;
  // Chooses the kernels; throws DeviceError naming op, dtypes and source line where there is none.
  virtual std::unique_ptr<Executable> prepare(std::span<const Step> steps, const PrepareOptions& options) = 0;
};

// The backend of a device; throws DeviceError if it is not built in or the device is not there.
Backend& backend(Device device);

}  // namespace tg
