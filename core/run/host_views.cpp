#include "core/run/host_views.h"

#include <tilegrad/core/base/error.h>

namespace tg {

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
