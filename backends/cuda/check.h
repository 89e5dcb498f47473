// CUDA's error codes as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace tg::cuda {

// Throws OutOfMemory or DeviceError, "[cuda] what: …", unless the call succeeded.
void check(cudaError_t status, const std::string& what);

}  // namespace tg::cuda
