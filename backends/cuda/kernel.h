// The form of a CUDA kernel on the host's side, and the table in which the executor finds kernels by op name.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <tilegrad/core/run/step.h>
#include "backends/cuda/fault.h"

namespace tg::cuda {

// What is known of the GPU.
struct Gpu {
  int ordinal = 0;
  int processors = 0;        // multiprocessors
  int capability = 0;        // 80, 90, …
  int shared_per_block = 0;  // bytes, opt-in maximum
};

// Where a kernel's launches go. They are recorded once and replayed: what a launch reads on the host,
// pointers included, must stay the same from run to run.
struct Stream {
  cudaStream_t stream;
  const Gpu& gpu;
  std::byte* workspace;  // what the kernel asked for, 256-byte aligned, contents undefined
  Faults faults;         // where index checks go
};

// One call: operands in the op's order, with their addresses, any strides unless the op says otherwise.
struct Call {
  std::span<const Arg> in, out;
  const Attrs* attrs;
  const void* plan;  // what Kernel::plan returned
  const Gpu& gpu;
  bool tf32;      // f32 products may round their operands
  bool in_order;  // what may add in free order adds in order
};

struct Kernel {
  // Enqueues; never waits, never allocates. Launch errors are found by the executor.
  void (*launch)(const Stream&, const Call&);
  // Bytes of workspace; none when left out.
  std::size_t (*workspace)(const Call&) = nullptr;
  // Decided once at compile time: algorithms, code. The call has no plan yet.
  std::shared_ptr<const void> (*plan)(const Call&) = nullptr;
  // How it goes about a call, in a few words: algorithm, tiles. The call has its plan.
  std::string (*choice)(const Call&) = nullptr;
};

// The kernel for an op, null if there is none.
const Kernel* find_kernel(std::string_view op);

}  // namespace tg::cuda
