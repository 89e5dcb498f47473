// CUDA's error codes as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace tg::cuda {

// Throws OutOfMemory or DeviceError, "[cuda] what: …". A sticky error of a kernel may surface at any later
// call; then the message says how to find the step.
[[noreturn]] void fail(cudaError_t status, std::string_view what);

inline void check(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess) fail(status, what);
}

// Whether the GPU has passed an event: cudaSuccess, cudaErrorNotReady, or an error.
cudaError_t query(cudaEvent_t event);

// Makes a GPU the calling thread's current one.
void use_gpu(int ordinal);

// Whether TG_STEPWISE=1 is set: programs then wait after every step, so that an error names its step, and put
// each step into an NVTX range of its name.
bool stepwise();

}  // namespace tg::cuda
