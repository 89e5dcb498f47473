// Ops whose kernel is a C++ function on host memory (user-defined ones): operands are copied to the host, the
// function runs there in the stream's order, results are copied back.
#pragma once

#include <atomic>
#include <exception>

#include "backends/cuda/kernel.h"

namespace tg::cuda {

// What a host function threw. From then on no host function of the program runs, until it has been told.
struct Thrown {
  std::atomic<bool> any{false};
  std::exception_ptr what;
};

extern const Kernel host_kernel;
// Enqueues: if *threw, in pinned memory, is not 0, the program has a fault.
void note_thrown(const Stream& s, const int* threw);
// Throws DeviceError for operands that are not row-major. Of the step only the op and the layouts are used.
std::shared_ptr<const void> plan_host(const Step& step, Thrown& thrown);

}  // namespace tg::cuda
