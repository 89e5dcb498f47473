#include "core/run/backend_steps.h"

#include "core/base/messages.h"

namespace tg {

std::exception_ptr exception_of(const HostStep& step) {
  try {
    rethrow_with([&](const std::string& what) {
      return "[" + step.name + "] its C++ function threw: " + what + " " + at_line(step.where);
    });
  } catch (...) {
    return std::current_exception();
  }
}

std::vector<HostView> host_views(std::span<const Arg> args) {
  std::vector<HostView> v;
  for (const Arg& a : args) {
    if (!a.layout.is_contiguous())
      throw DeviceError("its host function needs row-major operands: pass contiguous(x)");
    v.push_back({a.dtype, a.layout.shape, nullptr});
  }
  return v;
}

}  // namespace tg
