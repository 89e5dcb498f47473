// User-defined ops whose kernel is a C++ function on host memory. Operands are copied to the host, the
// function runs there in the stream's order, and results are copied back.
#pragma once

#include <atomic>
#include <exception>

#include "backends/cuda/runtime/kernel.h"

namespace tg::cuda {

// An exception of a host function. Until the exception has been reported, no other host function of the
// program runs.
struct Thrown {
  std::atomic<bool> any{false};
  std::exception_ptr what;
};

// Enqueues a kernel that records a fault of the program if *threw is not 0. `threw` is in pinned memory.
void note_thrown(const Stream& s, const int* threw);
// Throws DeviceError for operands that are not row-major. Uses only the op and the layouts of the step.
PlanPtr plan_host(const Step& step, Thrown& thrown);

}  // namespace tg::cuda
