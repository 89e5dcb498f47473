// Returns the backend of a device.
#include <tilegrad/core/run/backend.h>

#include <tilegrad/core/base/error.h>
#include "backends/cpu/kernel.h"
#if defined(TILEGRAD_CUDA)
#include "backends/cuda/cuda.h"
#endif

namespace tg {

Backend& backend(Device device) {
  if (device.kind == Device::cpu_kind) return cpu::backend();
#if defined(TILEGRAD_CUDA)
  return cuda::backend(device.ordinal);
#else
  throw DeviceError("[cuda] this build of tilegrad has no CUDA backend: it was configured without nvcc");
#endif
}

}  // namespace tg
