// CUDA's error codes as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace tg::cuda {

// Throws OutOfMemory or DeviceError, "[cuda] what: …". After an error that a kernel left behind, which any
// later call may be the one to report, the message says how to find the step.
[[noreturn]] void fail(cudaError_t status, std::string_view what);

inline void check(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess) fail(status, what);
}

// Whether the GPU has passed an event: cudaSuccess, cudaErrorNotReady, or what went wrong.
cudaError_t query(cudaEvent_t event);

// Host memory that the GPU reads and writes; throws OutOfMemory with the size.
std::byte* pinned_memory(std::size_t bytes, std::string_view what);

// TG_STEPWISE=1 in the environment: programs wait after every step, so that an error names the step it is of,
// and mark it with an NVTX range of its name.
bool stepwise();

}  // namespace tg::cuda
