// The CUDA backend: one instance per GPU.
#pragma once

#include <tilegrad/core/run/backend.h>

namespace tg::cuda {

// Returns the backend of a GPU. Throws DeviceError if there is no driver or no such GPU, or if its compute
// capability is below 8.0.
Backend& backend(int ordinal);

// Returns the number of GPUs that this process can use, or 0 without a driver.
int device_count();

}  // namespace tg::cuda
