// A step's operands as arguments of a host function (Op::host), for backends that run one, and its
// exceptions.
#pragma once

#include <exception>
#include <vector>

#include <tilegrad/core/run/backend.h>

namespace tg {

// Views without data, which the backend sets; throws DeviceError for an operand that is not row-major.
std::vector<HostView> host_views(std::span<const Arg> args);

// Where a host function is called, for its exceptions.
struct HostStep {
  explicit HostStep(const Step& step) : name(step.name), where(step.where) {}
  std::string name;
  std::source_location where;
};
// In a catch block: the exception that the function threw, with the step and its source line
// (core/base/rethrow.h).
std::exception_ptr exception_of(const HostStep& step);

}  // namespace tg
