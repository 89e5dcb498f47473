// A step's operands as arguments of a host function (Op::host), for backends that run one.
#pragma once

#include <vector>

#include <tilegrad/core/run/backend.h>

namespace tg {

// Views without data, which the backend sets; throws DeviceError for an operand that is not row-major.
std::vector<HostView> host_views(std::span<const Arg> args);

}  // namespace tg
