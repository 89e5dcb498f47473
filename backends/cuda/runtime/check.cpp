#include "backends/cuda/runtime/check.h"

#include <cstdlib>
#include <string>

#include <tilegrad/core/base/error.h>

namespace tg::cuda {

namespace {

// Sticky errors: a kernel failed while it ran, and CUDA returns the error from every later call.
bool is_sticky(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool stepwise() {
  const char* s = std::getenv("TG_STEPWISE");
  return s && *s && *s != '0';
}

void fail(cudaError_t status, std::string_view what) {
  cudaGetLastError();  // so that the next call does not report it again
  std::string why = "[cuda] " + std::string(what) + ": " + cudaGetErrorString(status);
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory(why);
  if (is_sticky(status) && !stepwise())
    why +=
        "; an earlier step caused this error: run again with TG_STEPWISE=1 in the environment to learn which";
  throw DeviceError(why);
}

cudaError_t query(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) cudaGetLastError();  // or the next launch would seem to have failed
  return status;
}

std::byte* pinned_memory(std::size_t bytes, std::string_view what) {
  void* p = nullptr;
  const cudaError_t status = cudaMallocHost(&p, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory("[cuda] no pinned host memory for " + std::string(what) + ": " + std::to_string(bytes) +
                      " bytes needed");
  }
  check(status, what);
  return static_cast<std::byte*>(p);
}

}  // namespace tg::cuda
