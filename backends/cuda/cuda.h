// The CUDA backend: one for each GPU.
#pragma once

#include <tilegrad/core/run/backend.h>

namespace tg::cuda {

// Throws DeviceError where there is no driver, no such GPU, or one older than compute capability 8.0.
Backend& backend(int ordinal);

// GPUs this process can use; 0 where there is no driver.
int device_count();

}  // namespace tg::cuda
