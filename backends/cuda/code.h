// Kernels made at run time from CUDA C++ source, compiled once for each GPU and kept by the hash of the
// source.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "backends/cuda/kernel.h"

namespace tg::cuda {

// The kernel `name` (extern "C") of the source. Throws DeviceError with the compiler's words if it does not
// compile. Valid for the life of the process.
cudaKernel_t compiled(const std::string& source, const std::string& name, const Gpu& gpu);

}  // namespace tg::cuda
