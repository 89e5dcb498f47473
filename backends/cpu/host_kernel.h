// Runs an op's own host function as if it were a kernel: user-defined ops.
#pragma once

#include <exception>
#include <memory>

#include "backends/cpu/kernel.h"

namespace tg::cpu {

extern const Kernel host_kernel;
// What host_kernel needs as its call's plan. An exception of the function is put into `thrown` (the first
// wins). Throws DeviceError when an operand is not row-major.
std::shared_ptr<const void> plan_host(const Step& step, std::exception_ptr& thrown);

}  // namespace tg::cpu
