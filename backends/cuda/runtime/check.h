// CUDA's error codes as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace tg::cuda {

// Throws OutOfMemory or DeviceError with message "[cuda] what: …". A kernel's sticky error may surface in any
// later call. In this case the message explains how to find the step.
[[noreturn]] void fail(cudaError_t status, std::string_view what);

inline void check(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess) fail(status, what);
}

// Returns whether the GPU has passed an event: cudaSuccess, cudaErrorNotReady, or an error.
cudaError_t query(cudaEvent_t event);

// Makes a GPU the current one of the calling thread.
void use_gpu(int ordinal);

// Whether TG_STEPWISE=1 is set. Programs then wait after every step, so that an error names the step. They
// also put each step into an NVTX range with the step's name.
bool stepwise();

}  // namespace tg::cuda
