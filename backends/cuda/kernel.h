// The host side of a CUDA kernel, and the table in which the executor finds kernels by op name.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <tilegrad/core/run/step.h>
#include "backends/cuda/fault.h"
#include "backends/cuda/written_memory.h"

namespace tg::cuda {

// Properties of the GPU.
struct Gpu {
  int ordinal = 0;
  int processors = 0;        // multiprocessors
  int capability = 0;        // 80, 90, …
  int shared_per_block = 0;  // bytes, opt-in maximum
  bool hopper = false;       // sm_90a, and the library has code for it
};

// The stream that a kernel is launched on. Launches are recorded once and replayed: what a launch reads on
// the host, pointers included, must stay the same from run to run.
struct Stream {
  cudaStream_t stream;
  const Gpu& gpu;
  std::byte* workspace;  // of the size that Kernel::workspace returned, 256-byte aligned, contents undefined
  Faults faults;         // where index checks report
};

// One call: operands in the op's order, with their addresses, and with any strides unless the op says
// otherwise.
struct Call {
  std::span<const Arg> in, out;
  const Attrs* attrs;
  const void* plan;  // what Kernel::plan returned
  const Gpu& gpu;
  bool tf32;        // f32 products may round their operands
  bool in_order;    // kernels that could add in any order must add in a fixed order
  bool rows_alone;  // the order of a row's additions must not depend on the number of rows
  const WrittenMemory* written = nullptr;  // what the program's steps write; null: any memory
};

// Whether no step of the call's program writes the operand.
inline bool is_constant(const Arg& a, const Call& call) {
  return call.written && !call.written->overlaps(a);
}

struct Kernel {
  // Enqueues the work; never waits, never allocates. The executor finds launch errors.
  void (*launch)(const Stream&, const Call&);
  // Bytes of workspace that it needs; none if left out. Throws DeviceError for a call that it cannot compute.
  std::size_t (*workspace)(const Call&) = nullptr;
  // Chooses algorithms and compiles code, once, at compile time. The call has no plan yet.
  std::shared_ptr<const void> (*plan)(const Call&) = nullptr;
  // Describes how it computes a call: algorithm, tiles. The call has its plan.
  std::string (*choice)(const Call&) = nullptr;
};

// The kernel for an op, null if there is none.
const Kernel* find_kernel(std::string_view op);

}  // namespace tg::cuda
