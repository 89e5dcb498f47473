// The CUDA backend: one for each GPU.
#pragma once

#include <tilegrad/core/run/backend.h>

namespace tg::cuda {

// Throws DeviceError if there is no driver or no such GPU, or if its compute capability is below 8.0.
Backend& backend(int ordinal);

// The number of GPUs that this process can use; 0 without a driver.
int device_count();

}  // namespace tg::cuda
