// Functions for all backends. They create the arguments of a host function (Op::host), the exception of a
// failed host function, and the error for a step that a backend cannot run.
#pragma once

#include <exception>
#include <string>
#include <vector>

#include <tilegrad/core/base/error.h>
#include <tilegrad/core/graph/graph.h>
#include <tilegrad/core/run/backend.h>
#include <tilegrad/core/run/step.h>

namespace tg {

// Returns views without data pointers. The backend sets the pointers. Throws DeviceError for an operand that
// is not row-major.
std::vector<HostView> host_views(std::span<const Arg> args);

// The step that calls a host function, for error messages.
struct HostStep {
  explicit HostStep(const Step& step) : name(step.name), where(step.where) {}
  std::string name;
  Where where;
};
// For a catch block: returns the exception of the host function. The step and its source line are added to
// the message (rethrow_with in core/base/messages.h).
std::exception_ptr exception_of(const HostStep& step);

// Returns the error for a step that a backend cannot run:
// "[h.3.attn/flash_attn] WHY; got bf16 [1, 2, 5, 8] with causal=true (train.cpp:41)"
inline DeviceError refusal(const Step& s, const std::string& why) {
  return DeviceError("[" + s.name + "] " + why + detail::got_text(s.in, s.attrs) + " " + at_line(s.where));
}

}  // namespace tg
