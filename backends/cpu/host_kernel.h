// Runs a user-defined op's C++ function as if it were a kernel.
#pragma once

#include <exception>
#include <memory>

#include "backends/cpu/kernel.h"

namespace tg::cpu {

extern const Kernel host_kernel;
// The plan that host_kernel needs. The first exception that the function throws is stored in `thrown`. Throws
// DeviceError if an operand is not row-major.
std::shared_ptr<const void> plan_host(const Step& step, std::exception_ptr& thrown);

}  // namespace tg::cpu
